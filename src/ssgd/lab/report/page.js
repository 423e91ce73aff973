"use strict";
// Starts the drawings, and switches between light and dark.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = new Map(data.charts.map((chart) => [chart.name, chart]));
  for (const figure of document.querySelectorAll("figure.chart")) {
    const chart = charts.get(figure.dataset.chart);
    (chart.groups ? drawIntervals : drawChart)(figure, chart);
  }
  const surfaces = [...document.querySelectorAll("figure.surface")].map((figure) =>
    new TurningSurface(figure, data.surfaces[figure.dataset.part][figure.dataset.number]));

  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = remembered();

  function apply() {
    const theme = chosen ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(theme === "dark"));
    for (const surface of surfaces) surface.draw();
  }
  function remembered() {
    try { return localStorage.getItem("theme"); } catch { return null; } // storage may be forbidden
  }
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", chosen); } catch { /* then it lasts until the page is left */ }
    apply();
  });
  dark.addEventListener("change", apply);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
  apply();
})();
