"use strict";
// Gains and their intervals, a row each below the name of its group: drawForest(figure, chart).
// Rows of one seed are folded, where others have more.

const ROW = 22, HEAD = 30, FOOT = 44;

function drawForest(figure, chart) {
  const plot = figure.querySelector(".plot");
  const narrow = matchMedia("(max-width: 40rem)");
  const sure = (row) => row.count > 1;
  const draw = () => {
    const box = narrow.matches ? { width: 380, names: 0, row: 2 * ROW } : { width: 860, names: 330, row: ROW };
    const [several, single] = [sure, (row) => !sure(row)].map((chosen) => chart.groups
      .map((group) => ({ ...group, rows: group.rows.filter(chosen) })).filter((group) => group.rows.length));
    if (!several.length || !single.length) return plot.replaceChildren(forest(chart, chart.groups, box));
    const folded = document.createElement("details");
    folded.append(Object.assign(document.createElement("summary"), { textContent: "Those of one seed" }), forest(chart, single, box));
    plot.replaceChildren(forest(chart, several, box), folded);
  };
  narrow.addEventListener("change", draw);
  draw();
}

function forest(chart, groups, box) {
  const rows = groups.flatMap((group) => group.rows);
  const line = chart.line;
  const height = groups.length * HEAD + rows.length * box.row + FOOT + (line ? 16 : 0);
  const svg = element("svg", { viewBox: `0 0 ${box.width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", `${chart.title}; the numbers are in the table below`);
  const ends = rows.flatMap((row) => [row.mean, row.low, row.high, row.paper, ...row.seeds]).filter((v) => v !== null);
  const from = box.names + 12, until = box.width - (box.names ? 135 : 12), bottom = height - FOOT;
  const x = scale(...padded([0, ...ends, ...(line ? [line.at] : [])], 0.04), from, until);
  for (const t of x.ticks) {
    svg.append(element("line", { class: "grid", x1: x.to(t), x2: x.to(t), y1: 4, y2: bottom }));
    text(svg, x.to(t), bottom + 16, short(t), { "text-anchor": "middle" });
  }
  svg.append(element("line", { class: "zero", x1: x.to(0), x2: x.to(0), y1: 4, y2: bottom }));
  text(svg, (from + until) / 2, height - 10, chart.x, { "text-anchor": "middle" });
  let y = 0;
  if (line) {
    svg.append(element("line", { class: "theirs", x1: x.to(line.at), x2: x.to(line.at), y1: 18, y2: bottom }));
    text(svg, until, 13, line.label, { "text-anchor": "end", class: "name" });
    y = 16;
  }
  const dear = (row) => Number(row.cost >= 1.1);
  for (const group of groups) {
    text(svg, 8, y + HEAD - 9, group.name, { class: "group" });
    y += HEAD;
    for (const row of [...group.rows].sort((a, b) => dear(a) - dear(b) || b.mean - a.mean)) {
      const colour = `var(--c${dear(row)})`, middle = y + box.row - ROW / 2, told = y + ROW / 2 + 4;
      const drawn = element("g", { class: "ours" });
      if (row.low !== null) drawn.append(element("line", { class: "bar", x1: x.to(row.low), x2: x.to(row.high), y1: middle, y2: middle, style: `stroke:${colour}` }));
      for (const one of row.seeds.length > 1 ? row.seeds : []) drawn.append(element("circle", { class: "seed", cx: x.to(one), cy: middle + 6, r: 1.8, style: `fill:${colour}` }));
      drawn.append(mark(x.to(row.mean), middle, row.count === 1, colour));
      if (row.paper !== null) drawn.append(element("path", { class: "theirs", d: `M${x.to(row.paper)} ${middle - 6}l6 6l-6 6l-6 -6z` }));
      svg.append(drawn);
      text(svg, 16, told, row.name, { class: "name" });
      text(svg, box.width - 8, told, spoken(row), { "text-anchor": "end", class: "told" });
      y += box.row;
    }
  }
  return svg;
}

function spoken(row) {
  const mean = (row.mean < 0 ? "−" : "+") + Math.abs(row.mean).toFixed(2);
  return row.low !== null ? `${mean} ± ${((row.high - row.low) / 2).toFixed(2)}` : row.count === 1 ? `${mean}, one seed` : mean;
}
