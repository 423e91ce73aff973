"use strict";
// Starts the drawings, sorts and filters the tables, offers the data, and switches between light and dark.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = new Map(data.charts.map((chart) => [chart.name, chart]));
  for (const figure of document.querySelectorAll("figure.chart")) {
    const chart = charts.get(figure.dataset.chart);
    (chart.groups ? drawForest : drawCurves)(figure, chart);
    figure.querySelector("a[download]").href = `data:text/csv;charset=utf-8,${encodeURIComponent(table(chart))}`;
  }
  const surfaces = [...document.querySelectorAll("figure.surface")].map((figure) =>
    new TurningSurface(figure, data.surfaces[figure.dataset.part][figure.dataset.number]));

  function table(chart) {
    const rows = chart.groups
      ? [["group", "name", "cost", "gain", "low", "high", "paper", "seeds"],
        ...chart.groups.flatMap((group) => group.rows.map((r) => [group.name, r.name, r.cost, r.mean, r.low, r.high, r.paper, r.seeds.join(" ")]))]
      : [["panel", "series", chart.x, chart.y, "standard deviation", "seeds"],
        ...chart.panels.flatMap((panel) => panel.series.flatMap((s) => s.points.map((p) => [panel.name, s.label, p[0], p[1], p[2], p[3]?.join(" ")])))];
    return rows.map((row) => row.map((cell) => `"${String(cell ?? "").replaceAll('"', '""')}"`).join(",")).join("\n");
  }

  // A press on a column's name sorts the lines of each group by it, a second press the other way.
  for (const pressed of document.querySelectorAll("thead button")) {
    pressed.addEventListener("click", () => {
      const head = pressed.parentElement, place = head.cellIndex;
      const sign = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const of = (row) => row.cells[place].textContent.trim();
      const order = (a, b) => {
        const [x, y] = [a, b].map((row) => parseFloat(of(row).replace("−", "-")));
        if (isNaN(x) || isNaN(y)) return isNaN(x) && isNaN(y) ? sign * of(a).localeCompare(of(b)) : isNaN(x) - isNaN(y);
        return sign * (x - y);
      };
      for (const body of head.closest("table").tBodies) {
        body.append(...[...body.rows].filter((row) => row.className !== "of").sort(order));
      }
    });
  }

  // Only the numbers of one group of verdicts; what has none of them is not shown, and what is folded opens.
  const filters = [...document.querySelectorAll(".filter button")];
  function only(group) {
    for (const row of document.querySelectorAll("tr[data-groups]")) {
      row.hidden = Boolean(group) && !row.dataset.groups.split("|").includes(group);
    }
    for (const body of document.querySelectorAll(".numbers tbody")) {
      body.hidden = ![...body.rows].some((row) => row.className !== "of" && !row.hidden);
    }
    for (const part of document.querySelectorAll("section")) {
      const rows = [...part.querySelectorAll("tr[data-groups]")];
      part.hidden = rows.length > 0 && rows.every((row) => row.hidden);
      for (const folded of part.querySelectorAll(":scope > details")) folded.open = group === "not run";
    }
  }
  for (const filter of filters) {
    filter.addEventListener("click", () => {
      const on = filter.getAttribute("aria-pressed") === "false";
      for (const other of filters) other.setAttribute("aria-pressed", String(on && other === filter));
      only(on ? filter.dataset.group : "");
    });
  }

  const contents = document.querySelector(".contents details");
  const wide = matchMedia("(min-width: 70rem)");
  const unfold = () => { contents.open = wide.matches; };
  wide.addEventListener("change", unfold);
  unfold();

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
