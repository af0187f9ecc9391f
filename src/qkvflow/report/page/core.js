"use strict";
// Scales, axes, the tooltip and the list of figures: what every figure needs.

const DATA = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
const SVG = "http://www.w3.org/2000/svg";

function draw(parent, tag, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  parent.appendChild(made);
  return made;
}

function make(parent, tag, properties = {}) {
  const made = Object.assign(document.createElement(tag), properties);
  parent.appendChild(made);
  return made;
}

const colour = (model) => `m${model.index % DATA.colours}`;
const dashes = ["", "6 3", "2 2.5", "8 3 2 3", "12 4"];
const dash = (model) => dashes[Math.floor(model.index / DATA.colours) % dashes.length];
const visible = (group) =>
  DATA.models.filter((model) => model.group === group && !hidden.has(model.label));

// The same shapes, in the same order, as the printed figures.
function symbol(parent, model, x, y, size, kind) {
  const shape = Math.floor(model.index / DATA.colours) % 5;
  const s = size;
  const paths = [
    `M${x - s},${y}a${s},${s} 0 1,0 ${2 * s},0a${s},${s} 0 1,0 ${-2 * s},0`,
    `M${x - s},${y - s}h${2 * s}v${2 * s}h${-2 * s}z`,
    `M${x},${y - 1.2 * s}l${1.2 * s},${2.2 * s}h${-2.4 * s}z`,
    `M${x},${y - 1.35 * s}l${1.35 * s},${1.35 * s}l${-1.35 * s},${1.35 * s}l${-1.35 * s},${-1.35 * s}z`,
    `M${x},${y + 1.2 * s}l${1.2 * s},${-2.2 * s}h${-2.4 * s}z`,
  ];
  return draw(parent, "path", { d: paths[shape], class: `${kind} ${colour(model)}` });
}

// Numbers

function three(value) {
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
  if (size >= 6 || size < -4) return value.toPrecision(3);
  return value.toFixed(Math.max(0, 2 - size));
}

function short(value) {
  for (const [scale, unit] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= 0.9995 * scale) return three(value / scale) + unit;
  }
  return three(value);
}

function seconds(value) {
  if (value >= 172800) return `${three(value / 86400)} days`;
  if (value >= 7200) return `${three(value / 3600)} h`;
  if (value >= 120) return `${three(value / 60)} min`;
  return `${three(value)} s`;
}

function bytes(value) {
  for (const [scale, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= 0.9995 * scale) return `${three(value / scale)} ${unit}`;
  }
  return `${value} B`;
}

const nats = (value) => value.toFixed(4);
// 1.50M as 1.5M, 5.00 as 5; 500 stays.
const plain = (text) => text.replace(/(\.\d*?)0+(?=[a-zA-Z]*$)/, "$1").replace(/\.(?=[a-zA-Z]*$)/, "");

// Scales

function linear([low, high], [from, to]) {
  const place = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  place.inverse = (where) => low + ((where - from) / (to - from || 1)) * (high - low);
  place.ticks = (count) => {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((n) => n * power >= rough) * power;
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) ticks.push(i * step);
    place.digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (String(step / power).includes("2.5") ? 1 : 0));
    return ticks;
  };
  return place;
}

function logarithmic([low, high], range) {
  const inner = linear([Math.log(low), Math.log(high)], range);
  const place = (value) => inner(Math.log(value));
  place.inverse = (where) => Math.exp(inner.inverse(where));
  place.ticks = (count) => {
    for (const factors of [[1, 1.5, 2, 3, 4, 5, 6, 8], [1, 2, 5], [1, 3], [1]]) {
      const ticks = [];
      for (let e = Math.floor(Math.log10(low)) - 1; e <= Math.log10(high) + 1; e++) {
        for (const f of factors) {
          const value = Number(`${f}e${e}`);
          if (value >= low && value <= high) ticks.push(value);
        }
      }
      if (ticks.length <= count) return ticks;
    }
    return [];
  };
  return place;
}

function extent(values, pad = 0.06) {
  const known = values.filter((value) => value !== null && value !== undefined && isFinite(value));
  if (!known.length) return [0, 1];
  const low = Math.min(...known);
  const high = Math.max(...known);
  const room = (high - low || Math.abs(high) * 0.02 || 1) * pad;
  return [low - room, high + room];
}

function axisX(svg, scale, box, { count, format, unit }) {
  for (const value of scale.ticks(count)) {
    const tick = draw(svg, "g", { class: "tick" });
    const x = scale(value);
    draw(tick, "line", { x1: x, x2: x, y1: box.top, y2: box.bottom });
    draw(tick, "text", { x, y: box.bottom + 16, "text-anchor": "middle" }, format(value, scale));
  }
  draw(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
  const middle = (box.left + box.right) / 2;
  draw(svg, "text", { class: "unit", x: middle, y: box.bottom + 35, "text-anchor": "middle" }, unit);
}

function axisY(svg, scale, box, { count, unit }) {
  for (const value of scale.ticks(count)) {
    const tick = draw(svg, "g", { class: "tick" });
    const y = scale(value);
    draw(tick, "line", { x1: box.left, x2: box.right, y1: y, y2: y });
    draw(tick, "text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, value.toFixed(scale.digits));
  }
  if (unit) draw(svg, "text", { class: "unit", x: 0, y: box.top - 10 }, unit);
}

const fixed = (value, scale) => value.toFixed(scale.digits);

function canvas(host, width, height, label) {
  return draw(host, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

function widthOf(text, weight = 400) {
  const context = (widthOf.context ||= document.createElement("canvas").getContext("2d"));
  context.font = `${weight} 12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif`;
  return context.measureText(text).width;
}

// The tooltip: a title and lines of [model or null, name, value]

const tip = document.getElementById("tip");

function showTip(event, title, lines) {
  tip.replaceChildren();
  if (title) make(tip, "b", { textContent: title });
  for (const [model, name, value] of lines) {
    const line = make(tip, "div");
    const left = make(line, "span");
    if (model) make(left, "i", { className: `swatch ${colour(model)}` });
    left.append(name);
    make(line, "span", { textContent: value });
  }
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, innerWidth - width - 8);
  const above = event.clientY - height - 14;
  tip.style.left = `${Math.max(8, x)}px`;
  tip.style.top = `${above > 8 ? above : event.clientY + 18}px`;
}

function hideTip() {
  tip.hidden = true;
}

// Marks are [x, y, title, lines]; the nearest one within reach speaks.
function hoverable(svg, marks, reach = 28) {
  const near = (event) => {
    const box = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let found = null;
    let least = reach;
    for (const mark of marks) {
      const distance = Math.hypot(mark[0] - x, mark[1] - y);
      if (distance < least) [found, least] = [mark, distance];
    }
    if (found) showTip(event, found[2], found[3]);
    else hideTip();
  };
  svg.addEventListener("pointermove", near);
  svg.addEventListener("pointerdown", near);
  svg.addEventListener("pointerleave", hideTip);
}

// A row of buttons of which one is chosen.
function choice(controls, name, options, chosen, act) {
  const row = make(controls, "div");
  if (name) make(row, "span", { textContent: name });
  const buttons = options.map(([value, text]) => {
    const button = make(row, "button", { type: "button", textContent: text });
    button.addEventListener("click", () => set(value, true));
    return [value, button];
  });
  function set(value, speak) {
    for (const [own, button] of buttons) button.setAttribute("aria-pressed", String(own === value));
    if (speak) act(value);
  }
  set(chosen, false);
  return set;
}
