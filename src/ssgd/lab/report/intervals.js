"use strict";
// Differences and their intervals, a row each below the name of its group: drawIntervals(figure, chart).

const ROW = 22, HEAD = 30, FOOT = 44;

function drawIntervals(figure, chart) {
  const narrow = matchMedia("(max-width: 36rem)");
  const draw = () => {
    const plot = figure.querySelector(".plot");
    plot.replaceChildren(intervals(chart, narrow.matches ? { width: 380, names: 0, row: 2 * ROW } : { width: 720, names: 250, row: ROW }));
    figure.querySelector("figcaption").replaceChildren(legend({ series: costs(chart).map((alike, i) => ({ name: `${alike.join(" or ")} passes`, colour: i, loose: true })) }));
  };
  narrow.addEventListener("change", draw);
  draw();
}

function intervals(chart, box) {
  const rows = chart.groups.flatMap((group) => group.rows);
  const height = chart.groups.length * HEAD + rows.length * box.row + FOOT;
  const svg = element("svg", { viewBox: `0 0 ${box.width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", `${chart.x}; the numbers are in the table below`);
  const wide = rows.filter((row) => row.seeds > 2); // of two seeds an interval would leave no room for the others
  const ends = [0, ...rows.map((row) => row.mean), ...wide.flatMap((row) => [row.low, row.high])];
  const from = box.names + 12, until = box.width - (box.names ? 175 : 12);
  const x = scale(...padded(ends, 0.04), from, until);
  const inside = (value) => Math.max(from, Math.min(until, x.to(value)));
  for (const t of x.ticks) {
    svg.append(element("line", { class: "grid", x1: x.to(t), x2: x.to(t), y1: 4, y2: height - FOOT }));
    text(svg, x.to(t), height - FOOT + 16, short(t), { "text-anchor": "middle" });
  }
  svg.append(element("line", { class: "zero", x1: x.to(0), x2: x.to(0), y1: 4, y2: height - FOOT }));
  text(svg, (from + until) / 2, height - 10, chart.x, { "text-anchor": "middle" });
  const known = costs(chart);
  const place = (row) => known.findIndex((alike) => alike.includes(row.passes));
  let y = 0;
  for (const group of chart.groups) {
    text(svg, 8, y + HEAD - 9, group.name, { class: "group" });
    y += HEAD;
    for (const row of [...group.rows].sort((a, b) => place(a) - place(b) || b.mean - a.mean)) {
      const colour = place(row), style = `stroke:var(--c${colour % 8})`;
      const middle = y + box.row - ROW / 2, told = y + ROW / 2 + 4;
      const drawn = element("g", { class: "ours" });
      if (row.seeds > 1) drawn.append(element("line", { class: "bar", x1: inside(row.low), x2: inside(row.high), y1: middle, y2: middle, style }));
      drawn.append(mark({ colour }, x.to(row.mean), middle, `var(--c${colour % 8})`));
      svg.append(drawn);
      text(svg, 16, told, row.name, { class: "name" });
      text(svg, box.width - 8, told, spoken(row), { "text-anchor": "end", class: "told" });
      y += box.row;
    }
  }
  return svg;
}

// Those that differ by less than a twentieth are of one colour.
function costs(chart) {
  const found = [...new Set(chart.groups.flatMap((group) => group.rows.map((row) => row.passes)))].sort((a, b) => a - b);
  const alike = [];
  for (const cost of found) {
    if (alike.length && cost < 1.05 * alike.at(-1)[0]) alike.at(-1).push(cost);
    else alike.push([cost]);
  }
  return alike;
}

function spoken(row) {
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
  return row.seeds > 1 ? `${signed(row.mean)}, ${signed(row.low)} to ${signed(row.high)}` : `${signed(row.mean)}, one seed`;
}
