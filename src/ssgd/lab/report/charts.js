"use strict";
// Curves as SVG: drawChart(figure, chart). Pointer, finger or arrow keys show the values at an x.

const LEFT = 58, RIGHT = 14, TOP = 14, BOTTOM = 46;

function drawChart(figure, chart) {
  const plot = figure.querySelector(".plot");
  const narrow = matchMedia("(max-width: 36rem)");
  const draw = () => {
    drawIn(plot, chart, narrow.matches ? { width: 380, height: 300 } : { width: 720, height: 380 });
    figure.querySelector("figcaption").replaceChildren(legend(chart));
  };
  narrow.addEventListener("change", draw);
  draw();
}

function drawIn(plot, chart, box) {
  const x = xScale(chart, box), y = yScale(chart, box);
  const svg = element("svg", { viewBox: `0 0 ${box.width} ${box.height}`, tabindex: 0, role: "img" });
  svg.setAttribute("aria-label", `${chart.y} against ${chart.x}; arrow keys show the values`);
  drawAxes(svg, chart, x, y, box);
  const [width, height] = [box.width - LEFT - RIGHT + 12, box.height - TOP - BOTTOM + 12]; // room for marks at the edge
  const inside = element("svg", { x: LEFT - 6, y: TOP - 6, width, height, viewBox: `${LEFT - 6} ${TOP - 6} ${width} ${height}` });
  for (const series of chart.series) inside.append(drawSeries(series, x, y));
  svg.append(inside);
  if (chart.missing) text(svg, box.width - RIGHT - 8, box.height - BOTTOM - 12, chart.missing, { "text-anchor": "end", class: "empty" });
  const cross = element("line", { class: "cross", y1: TOP, y2: box.height - BOTTOM });
  svg.append(cross);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  plot.replaceChildren(svg, tip);
  watch(svg, tip, cross, chart, x, box.width);
}

function xScale(chart, box) {
  const [from, until] = [LEFT, box.width - RIGHT];
  if (chart.scale === "names") return scale(-0.5, chart.names.length - 0.5, from, until, chart.names.map((_, i) => i));
  const values = points(chart).map((p) => p[0]);
  if (chart.scale === "log") {
    const inside = scale(...padded(values.map(Math.log10), 0.04), from, until);
    const to = (v) => inside.to(Math.log10(v));
    return { to, ticks: [...new Set(values)].sort((a, b) => a - b) };
  }
  return scale(...padded(values, 0.02), from, until);
}

function yScale(chart, box) {
  const [from, until] = [box.height - BOTTOM, TOP];
  const drawn = points(chart).filter((p) => p[1] !== null);
  if (chart.logarithmic) {
    const values = drawn.map((p) => Math.log10(p[1]));
    const inside = scale(...padded(values, 0.04), from, until);
    const whole = inside.ticks.filter(Number.isInteger);
    return { to: (v) => inside.to(Math.log10(v)), ticks: whole.map((t) => 10 ** t) };
  }
  // Of learning curves the early epochs would leave no room for the rest.
  const values = drawn.flatMap((p) => (p[2] ? [p[1] - p[2], p[1] + p[2]] : [p[1]]));
  const banded = chart.series.some((series) => series.band);
  const ordered = [...values].sort((a, b) => a - b);
  const low = banded && ordered.length > 40 ? ordered[Math.floor(ordered.length / 20)] : ordered[0];
  const high = banded && ordered.length > 40 && ordered.at(-1) > 3 * ordered[Math.floor(ordered.length / 2)]
    ? ordered[Math.floor(ordered.length * 0.95)] : ordered.at(-1);
  return scale(...padded(ordered.length ? [low, high] : [], 0.06), from, until);
}

function points(chart) {
  return chart.series.flatMap((series) => series.points);
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
  return { to: (v) => from + ((v - low) / (high - low)) * (until - from), ticks };
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
}

function drawAxes(svg, chart, x, y, box) {
  const [right, bottom] = [box.width - RIGHT, box.height - BOTTOM];
  for (const t of y.ticks) {
    svg.append(element("line", { class: "grid", x1: LEFT, x2: right, y1: y.to(t), y2: y.to(t) }));
    text(svg, LEFT - 6, y.to(t) + 4, short(t), { "text-anchor": "end" });
  }
  for (const t of x.ticks) {
    const name = chart.scale === "names" ? chart.names[t] : short(t);
    text(svg, x.to(t), bottom + 18, name, { "text-anchor": "middle" });
  }
  svg.append(element("line", { class: "grid", x1: LEFT, x2: right, y1: bottom, y2: bottom }));
  text(svg, (LEFT + right) / 2, box.height - 8, chart.x, { "text-anchor": "middle" });
  const middle = (TOP + bottom) / 2;
  text(svg, 14, middle, chart.y, { "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` });
}

function drawSeries(series, x, y) {
  const group = element("g", { class: series.paper ? "paper" : "ours" });
  const colour = `var(--c${series.colour % 8})`;
  const drawn = series.points.filter((p) => p[1] !== null);
  if (series.band) {
    for (const run of stretches(series.points)) {
      const up = run.map((p) => `${x.to(p[0])},${y.to(p[1] + (p[2] ?? 0))}`);
      const down = run.map((p) => `${x.to(p[0])},${y.to(p[1] - (p[2] ?? 0))}`).reverse();
      group.append(element("polygon", { class: "band", points: [...up, ...down].join(" "), style: `fill:${colour}` }));
    }
  }
  if (!series.loose) {
    const d = stretches(series.points).map((run) => "M" + run.map((p) => `${x.to(p[0])} ${y.to(p[1])}`).join("L")).join("");
    group.append(element("path", { class: "curve", d, style: `stroke:${colour}` }));
  }
  if (!marked(series)) return group;
  for (const p of drawn) {
    const [px, py] = [x.to(p[0]), y.to(p[1])];
    if (p[2]) group.append(element("line", { class: "bar", x1: px, x2: px, y1: y.to(p[1] - p[2]), y2: y.to(p[1] + p[2]), style: `stroke:${colour}` }));
    group.append(mark(series, px, py, colour));
  }
  return group;
}

function marked(series) {
  return !series.band && (series.points ?? []).filter((p) => p[1] !== null).length <= 60;
}

// Shape as well as colour tells the curves apart.
function mark(series, x, y, colour) {
  const r = 4;
  const style = series.paper ? `stroke:${colour}` : `stroke:${colour};fill:${colour}`;
  const shapes = [
    `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
    `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    `M${x} ${y - r - 1}l${r + 1} ${2 * r}h${-2 * r - 2}z`,
    `M${x} ${y - r - 1}l${r + 1} ${r + 1}l${-r - 1} ${r + 1}l${-r - 1} ${-r - 1}z`,
  ];
  return element("path", { class: "mark", d: shapes[series.colour % 4], style });
}

function stretches(points) {
  const runs = [[]];
  for (const p of points) {
    if (p[1] === null) runs.push([]);
    else runs.at(-1).push(p);
  }
  return runs.filter((run) => run.length);
}

function legend(chart) {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const series of chart.series) {
    const item = document.createElement("li");
    const sample = element("svg", { viewBox: "0 0 28 10", class: "plot", "aria-hidden": "true" });
    const group = element("g", { class: series.paper ? "paper" : "ours" });
    const colour = `var(--c${series.colour % 8})`;
    if (!series.loose) group.append(element("path", { class: "curve", d: "M0 5H28", style: `stroke:${colour}` }));
    if (marked(series)) group.append(mark(series, 14, 5, colour));
    sample.append(group);
    item.append(sample, series.paper === undefined ? series.name : `${series.name} (${series.paper ? "paper" : "ours"})`);
    list.append(item);
  }
  return list;
}

function watch(svg, tip, cross, chart, x, width) {
  const places = [...new Set(points(chart).filter((p) => p[1] !== null).map((p) => p[0]))].sort((a, b) => a - b);
  if (!places.length) return;
  let at = -1;
  const show = (index) => {
    at = Math.max(0, Math.min(places.length - 1, index));
    const place = places[at], px = x.to(place);
    cross.setAttribute("x1", px);
    cross.setAttribute("x2", px);
    cross.style.visibility = "visible";
    tip.replaceChildren(line(`${chart.x}: ${chart.scale === "names" ? chart.names[place] : short(place)}`));
    for (const series of chart.series) {
      series.points.forEach((p) => {
        if (p[0] !== place || p[1] === null) return;
        const spread = p[2] ? ` ± ${Number(p[2].toPrecision(2))}` : "";
        tip.append(line(`${series.name} (${series.paper ? "paper" : "ours"}): ${short(p[1])}${spread}`));
      });
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
  const div = document.createElement("div");
  div.textContent = words;
  return div;
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
