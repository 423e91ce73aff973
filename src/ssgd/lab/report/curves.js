"use strict";
// Panels of curves as SVG, side by side on the same axes: drawCurves(figure, chart).
// Pointer, finger or arrow keys show the values at an x. What a curve is called stands at its end.

const MARGIN = { left: 52, right: 14, top: 14, bottom: 46 };
const COLOURS = { paper: "var(--soft)", own: "var(--c1)" }; // others by their number

function drawCurves(figure, chart) {
  const plot = figure.querySelector(".plot");
  const narrow = matchMedia("(max-width: 40rem)");
  const draw = () => {
    const several = chart.panels.length > 1;
    plot.classList.toggle("panels", several);
    const box = several || narrow.matches ? { width: 380, height: 270 } : { width: 860, height: 400 };
    plot.replaceChildren(...chart.panels.map((panel) => drawPanel(chart, panel, box)));
  };
  narrow.addEventListener("change", draw);
  draw();
}

function drawPanel(chart, panel, size) {
  // Beside several curves of one panel there is room for their names.
  const names = panel.series.filter((s) => s.who !== "paper").length > 1 && chart.name !== "noise_units";
  const room = size.width > 500 ? 200 : 90;
  const box = { ...MARGIN, ...size, right: names && !panel.series[0].beside ? room : MARGIN.right };
  const x = xScale(chart, box), y = yScale(chart, box);
  const svg = element("svg", { viewBox: `0 0 ${box.width} ${box.height}`, tabindex: 0, role: "img" });
  svg.setAttribute("aria-label", `${panel.name} ${chart.y} against ${chart.x}; arrow keys show the values`);
  drawAxes(svg, chart, x, y, box);
  const colours = panel.series.map((series, i) => COLOURS[series.who] ?? `var(--c${names ? i % 8 : 0})`);
  panel.series.forEach((series, i) => svg.append(drawSeries(series, x, y, colours[i])));
  if (names) nameCurves(svg, panel, x, y, colours, box);
  else if (!chart.missing) nameByMarks(svg, panel, x, y, colours, box);
  if (chart.missing) text(svg, box.width - box.right - 8, box.height - box.bottom - 12, chart.missing, { "text-anchor": "end", class: "empty" });
  const cross = element("line", { class: "cross", y1: box.top, y2: box.height - box.bottom });
  svg.append(cross);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  watch(svg, tip, cross, chart, panel, x, box.width);
  const holder = document.createElement("div");
  holder.className = "panel";
  if (panel.name) holder.append(Object.assign(document.createElement("h5"), { textContent: panel.name }));
  holder.append(svg, tip);
  return holder;
}

function xScale(chart, box) {
  const [from, until] = [box.left, box.width - box.right];
  if (chart.scale === "names") return scale(-0.5, chart.names.length - 0.5, from, until, chart.names.map((_, i) => i));
  const values = points(chart).map((p) => p[0]);
  if (chart.scale === "log") {
    const inside = scale(...padded(values.map(Math.log10), 0.04), from, until);
    return { to: (v) => inside.to(Math.log10(v)), ticks: [...new Set(values)].sort((a, b) => a - b) };
  }
  return scale(...padded(values, 0.03), from, until);
}

function yScale(chart, box) {
  const [from, until] = [box.height - box.bottom, box.top];
  const drawn = points(chart).filter((p) => p[1] !== null);
  if (chart.log) {
    const inside = scale(...padded(drawn.map((p) => Math.log10(p[1])), 0.04), from, until);
    return { to: (v) => inside.to(Math.log10(v)), ticks: inside.ticks.filter(Number.isInteger).map((t) => 10 ** t) };
  }
  // Of learning curves the early epochs would leave no room for the rest.
  const values = drawn.flatMap((p) => (p[2] ? [p[1] - p[2], p[1] + p[2]] : [p[1]])).sort((a, b) => a - b);
  const banded = values.length > 40 && chart.panels.some((panel) => panel.series.some((series) => series.band));
  const low = banded ? values[Math.floor(values.length / 20)] : values[0];
  const high = banded && values.at(-1) > 3 * values[values.length >> 1] ? values[Math.floor(values.length * 0.95)] : values.at(-1);
  return scale(...padded(values.length ? [low, high] : [], 0.06), from, until);
}

function points(chart) {
  return chart.panels.flatMap((panel) => panel.series.flatMap((series) => series.points));
}

function padded(values, share) {
  if (!values.length) return [0, 1];
  const low = Math.min(...values), high = Math.max(...values), pad = (high - low) * share || Math.abs(high) * 0.05 || 1;
  return [low - pad, high + pad];
}

function scale(low, high, from, until, fixed) {
  const step = niceStep((high - low) / 6);
  const ticks = fixed ?? Array.from({ length: 20 }, (_, i) => (Math.ceil(low / step) + i) * step)
    .filter((t) => t <= high).map((t) => Number(t.toPrecision(10)));
  const [least, most] = [Math.min(from, until), Math.max(from, until)];
  return { to: (v) => Math.max(least - 6, Math.min(most + 6, from + ((v - low) / (high - low)) * (until - from))), ticks };
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
}

function drawAxes(svg, chart, x, y, box) {
  const [right, bottom] = [box.width - box.right, box.height - box.bottom];
  for (const t of y.ticks) {
    svg.append(element("line", { class: "grid", x1: box.left, x2: right, y1: y.to(t), y2: y.to(t) }));
    text(svg, box.left - 6, y.to(t) + 4, short(t), { "text-anchor": "end" });
  }
  for (const t of x.ticks) {
    text(svg, x.to(t), bottom + 18, chart.scale === "names" ? chart.names[t] : short(t), { "text-anchor": "middle" });
  }
  svg.append(element("line", { class: "grid", x1: box.left, x2: right, y1: bottom, y2: bottom }));
  text(svg, (box.left + right) / 2, box.height - 8, chart.x, { "text-anchor": "middle" });
  const middle = (box.top + bottom) / 2;
  text(svg, 13, middle, chart.y, { "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` });
}

function drawSeries(series, x, y, colour) {
  const group = element("g", { class: series.who });
  const runs = stretches(series.points);
  const at = (p) => `${x.to(p[0])} ${y.to(p[1])}`;
  if (series.band) {
    for (const run of runs) {
      const edge = (sign) => run.map((p) => `${x.to(p[0])},${y.to(p[1] + sign * (p[2] ?? 0))}`);
      group.append(element("polygon", { class: "band", points: [...edge(1), ...edge(-1).reverse()].join(" "), style: `fill:${colour}` }));
    }
  }
  if (series.line) group.append(element("path", { class: "curve", d: runs.map((run) => "M" + run.map(at).join("L")).join(""), style: `stroke:${colour}` }));
  if (series.points.length > 60) return group;
  for (const p of series.points.filter((p) => p[1] !== null)) {
    const [px, py] = [x.to(p[0]), y.to(p[1])];
    if (p[2]) group.append(element("line", { class: "bar", x1: px, x2: px, y1: y.to(p[1] - p[2]), y2: y.to(p[1] + p[2]), style: `stroke:${colour}` }));
    for (const one of p[3]?.length > 1 ? p[3] : []) group.append(element("circle", { class: "seed", cx: px + 5, cy: y.to(one), r: 1.6, style: `fill:${colour}` }));
    group.append(mark(px, py, series.who === "paper" || p[3]?.length === 1, colour));
  }
  return group;
}

function mark(x, y, hollow, colour) {
  return element("circle", { class: "mark", cx: x, cy: y, r: 4, style: `stroke:${colour};fill:${hollow ? "var(--panel)" : colour}` });
}

function stretches(found) {
  const runs = [[]];
  for (const p of found) {
    if (p[1] === null) runs.push([]);
    else runs.at(-1).push(p);
  }
  return runs.filter((run) => run.length);
}

// Names at the ends of the curves, pushed apart where they would lie on each other.
function nameCurves(svg, panel, x, y, colours, box) {
  const ends = panel.series.map((series, i) => ({ series, colour: colours[i], end: series.points.findLast((p) => p[1] !== null) }))
    .map((one) => ({ ...one, x: x.to(one.end[0]), y: y.to(one.end[1]) })).sort((a, b) => a.y - b.y);
  let last = -Infinity;
  for (const one of ends) last = one.told = Math.max(one.y, last + 15);
  const over = Math.max(0, last - (box.height - box.bottom));
  for (const one of ends) {
    const told = one.told - over, from = one.series.beside ? one.x + 20 : box.width - box.right + 16;
    svg.append(element("path", { class: "lead", d: `M${one.x + 8} ${one.y}L${from - 3} ${told}`, style: `stroke:${one.colour}` }));
    text(svg, from, told + 4, one.series.label, { class: "name" });
  }
}

// Where the paper and ours share a panel, the marks are named in the emptiest corner.
function nameByMarks(svg, panel, xs, ys, colours, box) {
  const width = 145, height = 16 * panel.series.length + 8;
  const drawn = panel.series.flatMap((series) => series.points).filter((p) => p[1] !== null).map((p) => [xs.to(p[0]), ys.to(p[1])]);
  const corners = [box.height - box.bottom - height, box.top].flatMap((top) => [box.left + 14, box.width - box.right - width].map((left) => [left, top]));
  const crowd = ([left, top]) => drawn.filter(([x, y]) => x > left - 20 && x < left + width && y > top - 12 && y < top + height + 12).length;
  const [x, top] = corners.reduce((best, corner) => (crowd(corner) < crowd(best) ? corner : best));
  panel.series.forEach((series, i) => {
    const y = top + 16 * (i + 1);
    const sample = element("g", { class: series.who });
    sample.append(series.band ? element("path", { class: "curve", d: `M${x - 14} ${y - 4}h20`, style: `stroke:${colours[i]}` })
      : mark(x, y - 4, series.who === "paper", colours[i]));
    svg.append(sample);
    text(svg, x + 10, y, series.label, { class: "name" });
  });
}

function watch(svg, tip, cross, chart, panel, x, width) {
  const places = [...new Set(panel.series.flatMap((s) => s.points).filter((p) => p[1] !== null).map((p) => p[0]))].sort((a, b) => a - b);
  if (!places.length) return;
  let at = -1;
  const show = (index) => {
    at = Math.max(0, Math.min(places.length - 1, index));
    const place = places[at], px = x.to(place);
    cross.setAttribute("x1", px);
    cross.setAttribute("x2", px);
    cross.style.visibility = "visible";
    tip.replaceChildren(line(`${chart.x}: ${chart.scale === "names" ? chart.names[place] : short(place)}`));
    for (const series of panel.series) {
      for (const p of series.points.filter((p) => p[0] === place && p[1] !== null)) {
        tip.append(line(`${series.label}: ${short(p[1])}${p[2] ? ` ± ${Number(p[2].toPrecision(2))}` : ""}`));
      }
    }
    tip.style.display = "block";
    const right = px > width / 2;
    tip.style.left = right ? "auto" : `${(px / width) * 100 + 2}%`;
    tip.style.right = right ? `${100 - (px / width) * 100 + 2}%` : "auto";
  };
  const hide = () => { tip.style.display = "none"; cross.style.visibility = "hidden"; };
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const px = ((event.clientX - box.left) / box.width) * width;
    show(places.reduce((best, v, i) => (Math.abs(x.to(v) - px) < Math.abs(x.to(places[best]) - px) ? i : best), 0));
  };
  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); }); // a finger's values stay
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: at < 0 ? 0 : at - 1, ArrowRight: at + 1, Home: 0, End: places.length - 1 }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
}

function line(words) {
  return Object.assign(document.createElement("div"), { textContent: words });
}

function short(value) {
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(1).replace(".0e", "e").replace("-", "−");
  return String(Number.isInteger(value) ? value : Number(value.toPrecision(4))).replace("-", "−");
}

function element(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function text(svg, x, y, words, attributes) {
  const made = element("text", { x, y, ...attributes });
  made.textContent = words;
  svg.append(made);
}
