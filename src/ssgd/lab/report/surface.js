"use strict";
// A surface over a plane on a canvas, far facets first; dragging or the arrow keys turn it.

const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis

class TurningSurface {
  constructor(figure, surface) {
    this.surface = surface;
    this.canvas = figure.querySelector("canvas");
    this.turn = -0.6;
    this.tilt = 0.9;
    this.choice = figure.querySelector("select");
    for (const name of Object.keys(surface.heights)) this.choice.add(new Option(name, name));
    this.choice.addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.listen();
  }

  listen() {
    let last = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      last = event;
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!last) return;
      this.rotate((event.clientX - last.clientX) / 120, (event.clientY - last.clientY) / 120);
      last = event;
    });
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => { last = null; });
    this.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key];
      if (!by) return;
      event.preventDefault();
      this.rotate(...by);
    });
  }

  rotate(turn, tilt) {
    this.turn += turn;
    this.tilt = Math.min(Math.PI / 2, Math.max(0.1, this.tilt + tilt));
    this.draw();
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * ratio), height = Math.round(this.canvas.clientHeight * ratio);
    if (!width || !height) return;
    this.canvas.width = width;
    this.canvas.height = height;
    const pen = this.canvas.getContext("2d");
    const heights = this.surface.heights[this.choice.value];
    const range = levels(heights);
    const view = this.view(width, height, range);
    for (const facet of this.facets(heights, range, view)) fill(pen, facet);
    this.drawPoints(pen, heights, view, ratio);
    pen.fillStyle = getComputedStyle(this.canvas).color;
    pen.font = `${13 * ratio}px system-ui, sans-serif`;
    pen.fillText(`${this.choice.value}: ${short(range.low)} to ${short(range.high)}, heights on a logarithmic scale`, 10 * ratio, 20 * ratio);
  }

  // x and y in -1 … 1, one scale for both; z in -0.5 … 0.5.
  view(width, height, range) {
    const { x, y } = this.surface;
    const span = Math.max(x.at(-1) - x[0], y.at(-1) - y[0]);
    const centre = [(x[0] + x.at(-1)) / 2, (y[0] + y.at(-1)) / 2];
    const [sin, cos, up, flat] = [Math.sin(this.turn), Math.cos(this.turn), Math.sin(this.tilt), Math.cos(this.tilt)];
    const size = Math.min(width, height) * 0.28; // corners stay inside at every turn
    return (px, py, value) => {
      const a = (2 * (px - centre[0])) / span, b = (2 * (py - centre[1])) / span, c = range.share(value) - 0.5;
      const across = a * cos - b * sin, along = a * sin + b * cos;
      return [width / 2 + across * size * 1.2, height / 2 + (along * up - c * flat * 1.4) * size * 1.1, along * flat + c * up];
    };
  }

  facets(heights, range, view) {
    const { x, y } = this.surface;
    const found = [];
    for (let i = 0; i + 1 < x.length; i++) {
      for (let j = 0; j + 1 < y.length; j++) {
        const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
        const values = corners.map(([a, b]) => heights[a][b]);
        if (values.some((v) => v === null)) continue;
        const at = corners.map(([a, b], k) => view(x[a], y[b], values[k]));
        const share = values.reduce((sum, v) => sum + range.share(v), 0) / 4;
        found.push({ at, colour: ramp(share), depth: at.reduce((sum, p) => sum + p[2], 0) });
      }
    }
    return found.sort((a, b) => a.depth - b.depth);
  }

  drawPoints(pen, heights, view, ratio) {
    const { x, y, points, names } = this.surface;
    pen.font = `bold ${13 * ratio}px system-ui, sans-serif`;
    points.forEach(([px, py], k) => {
      const value = heights[closest(x, px)][closest(y, py)];
      if (value === null) return;
      const [a, b] = view(px, py, value);
      pen.beginPath();
      pen.arc(a, b, 5 * ratio, 0, 2 * Math.PI);
      pen.fillStyle = "#d55e00";
      pen.fill();
      pen.lineWidth = 3 * ratio;
      pen.strokeStyle = "#ffffff";
      pen.stroke();
      const told = `${names[k]} ${short(value)}`;
      pen.strokeText(told, a + 9 * ratio, b - 6 * ratio);
      pen.fillStyle = "#000000";
      pen.fillText(told, a + 9 * ratio, b - 6 * ratio);
    });
  }
}

// Losses around a minimum span powers of ten: heights go by their logarithm.
function levels(heights) {
  const values = heights.flat().filter((v) => v !== null);
  const low = Math.min(...values), high = Math.max(...values), floor = Math.max(high * 1e-6, 1e-12);
  const log = (v) => Math.log(Math.max(v, floor));
  const span = log(high) - log(low) || 1;
  return { low, high, share: (v) => (log(v) - log(low)) / span };
}

function ramp(share) {
  const at = Math.min(Math.max(share, 0), 0.9999) * (RAMP.length - 1), i = Math.floor(at);
  return RAMP[i].map((v, k) => Math.round(v + (RAMP[i + 1][k] - v) * (at - i)));
}

function fill(pen, { at, colour }) {
  pen.beginPath();
  at.forEach(([a, b], k) => (k ? pen.lineTo(a, b) : pen.moveTo(a, b)));
  pen.closePath();
  pen.fillStyle = `rgb(${colour})`;
  pen.strokeStyle = `rgba(255,255,255,.25)`;
  pen.fill();
  pen.stroke();
}

function closest(axis, value) {
  return axis.reduce((best, v, i) => (Math.abs(v - value) < Math.abs(axis[best] - value) ? i : best), 0);
}
