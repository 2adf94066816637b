// What Locust's page cannot be told: tabs with a page of ours, fields in groups with a text below each, columns that
// nothing fills.
(() => {
  "use strict";
  const pages = new Map([["Live charts", "./llm/charts"], ["Reports", "./llm/reports"]]);

  // Where one lands after START. Locust reads the address when its own script, a module, runs: after this one.
  const address = new URL(location.href);
  if (!address.searchParams.has("tab")) {
    address.searchParams.set("tab", "llm-charts");
    history.replaceState(null, "", address);
  }

  // In the order of the groups, which Locust's page keeps; JSON had them by name.
  const groups = window.templateArgs?.llm_groups ?? [];
  if (groups.length) {
    const options = window.templateArgs.extra_options;
    const names = groups.flatMap(({ fields }) => fields.map(({ name }) => name));
    window.templateArgs.extra_options = Object.fromEntries(names.map((name) => [name, options[name]]));
  }

  // Room for all tabs in a window of common width.
  const style = document.createElement("style");
  style.textContent = "[role=tablist] [role=tab] { min-width: 0; padding-left: 9px; padding-right: 9px; }";
  document.head.append(style);

  let frame = null;
  function showPage() {
    const tab = document.querySelector("[role=tab][aria-selected=true]");
    const page = tab && pages.get(tab.textContent.trim());
    if (frame && frame.getAttribute("src") !== page) {
      frame.remove();
      frame = null;
    }
    const main = document.querySelector("main");
    if (!page || !main || frame?.isConnected) return;
    frame = Object.assign(document.createElement("iframe"), { title: tab.textContent.trim() });
    frame.setAttribute("src", page);
    frame.style.cssText = "display:block;width:100%;height:max(24rem,calc(100vh - 11.5rem));border:0;color-scheme:normal";
    main.append(frame);
  }

  const camel = (name) => name.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase());
  function text(tag, content, style) {
    const made = Object.assign(document.createElement(tag), { textContent: content });
    made.style.cssText = style;
    return made;
  }
  function groupFields() {
    for (const { title, fields } of groups) {
      fields.forEach(({ name, help, more }, at) => {
        for (const input of document.querySelectorAll(`form [name="${CSS.escape(camel(name))}"]:not([data-grouped])`)) {
          let field = input;
          while (field.parentElement && getComputedStyle(field.parentElement).rowGap !== "32px") field = field.parentElement;
          if (!field.parentElement) continue;
          input.dataset.grouped = "";
          if (at === 0) field.before(text("h3", title, "margin:0.5rem 0 -0.75rem;font-size:1rem;font-weight:600"));
          const below = text("p", help, "margin:-1.75rem 0 0;padding:0 14px;font-size:0.8rem;line-height:1.4;opacity:0.75;overflow-wrap:anywhere");
          below.id = `help-${name}-${document.querySelectorAll("[data-grouped]").length}`;
          if (more) below.title = more;
          input.setAttribute("aria-describedby", below.id);
          field.after(below);
        }
      });
    }
  }

  // Columns of our tables that no row fills.
  const tables = new Set((window.templateArgs?.extended_tables ?? []).map(({ key }) => key));
  function hideEmptyColumns() {
    if (!tables.has(new URL(location.href).searchParams.get("tab"))) return;
    for (const table of document.querySelectorAll("main table")) {
      const rows = [...table.querySelectorAll("tbody tr")];
      [...table.querySelectorAll("thead th")].forEach((head, at) => {
        const cells = rows.map(({ children }) => children[at]).filter(Boolean);
        const display = rows.length && cells.every(({ textContent }) => !textContent) ? "none" : "";
        for (const cell of [head, ...cells]) if (cell.style.display !== display) cell.style.display = display;
      });
    }
  }

  function look() {
    showPage();
    hideEmptyColumns();
    groupFields();
  }
  new MutationObserver(look).observe(document.getElementById("root"), {
    subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ["aria-selected"],
  });
})();
