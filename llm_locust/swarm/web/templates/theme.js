// Locust's own choice of colours, made before anything is painted.
(() => {
  "use strict";
  const root = document.documentElement;
  const dark = localStorage.theme === "dark" || (!localStorage.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "dark" : "light";
  // In a tab of Locust's page, which has the bar and the tabs.
  if (parent !== window) {
    root.dataset.framed = "";
    document.head.append(Object.assign(document.createElement("base"), { target: "_top" }));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => {
    if (localStorage.theme) return;
    root.dataset.theme = matches ? "dark" : "light";
    dispatchEvent(new Event("themechange"));
  });
  addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    localStorage.theme = root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    dispatchEvent(new Event("themechange"));
  });
  // Changed in another tab of the browser.
  addEventListener("storage", (event) => {
    if (event.key !== "theme" || !["dark", "light"].includes(event.newValue)) return;
    root.dataset.theme = event.newValue;
    dispatchEvent(new Event("themechange"));
  });
})();
