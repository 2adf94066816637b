// Locust's page can have more tabs, but none that leads to another page: these do.
(() => {
  "use strict";
  const links = new Map([["Live charts", "./llm/charts"], ["Reports", "./llm/reports"]]);
  addEventListener(
    "click",
    (event) => {
      const tab = event.target.closest("[role=tab]");
      const address = tab && links.get(tab.textContent.trim());
      if (!address) return;
      event.stopPropagation();
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) open(address, "_blank", "noopener");
      else location.assign(address);
    },
    true,
  );
})();
