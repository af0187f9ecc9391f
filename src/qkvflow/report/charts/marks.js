"use strict";
// What every panel needs: elements, scales, axes, marks, the tooltip.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const EM = 12;

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

const canvas = (host, width, height, label) =>
  draw(host, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });

const colour = (index) => `m${index % DATA.colours}`;
const round = (index) => Math.floor(index / DATA.colours) % 5;
const dash = (index) => ["", "6 3", "2 2.5", "8 3 2 3", "12 4"][round(index)];

// The same shapes, in the same order, as on paper.
function symbol(parent, index, x, y, s, kind) {
  const paths = [
    `M${x - s},${y}a${s},${s} 0 1,0 ${2 * s},0a${s},${s} 0 1,0 ${-2 * s},0`,
    `M${x - s},${y - s}h${2 * s}v${2 * s}h${-2 * s}z`,
    `M${x},${y - 1.2 * s}l${1.2 * s},${2.2 * s}h${-2.4 * s}z`,
    `M${x},${y - 1.35 * s}l${1.35 * s},${1.35 * s}l${-1.35 * s},${1.35 * s}l${-1.35 * s},${-1.35 * s}z`,
    `M${x},${y + 1.2 * s}l${1.2 * s},${-2.2 * s}h${-2.4 * s}z`,
  ];
  return draw(parent, "path", { d: paths[round(index)], class: `${kind} ${colour(index)}` });
}

function widthOf(text) {
  const context = (widthOf.context ||= document.createElement("canvas").getContext("2d"));
  context.font = `600 ${EM}px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif`;
  return context.measureText(text).width;
}

// Scales: from a value of the axis to a place on the screen, and back.

const known = (values) => values.filter((value) => value !== null && value !== undefined);

// What is left when series are hidden or a part is chosen, with the room that the axis asks for.
function fitted(axis, values) {
  const seen = known(values).filter((value) => !axis.log || value > 0);
  if (!seen.length) return [axis.views[0].low, axis.views[0].high];
  const turn = axis.log ? Math.log : Number;
  const ends = [turn(Math.min(...seen)), turn(Math.max(...seen))];
  if (axis.zero) return [0, (ends[1] || 1) * (1 + axis.pad)];
  const missing = axis.log ? Math.max(0, Math.log(1.04) - (ends[1] - ends[0])) / 2 : 0; // As in scales.py.
  const room = axis.pad * (ends[1] - ends[0] + 2 * missing || 0.02 * Math.abs(ends[1]) || 1) || 1e-9;
  return [ends[0] - missing - room, ends[1] + missing + room].map(axis.log ? Math.exp : Number);
}

function scale(axis, [low, high], [from, to]) {
  const [turn, back] = axis.log ? [Math.log, Math.exp] : [Number, Number];
  const [a, b] = [turn(low), turn(high)];
  const place = (value) => from + ((turn(value) - a) / (b - a || 1)) * (to - from);
  place.inverse = (where) => back(a + ((where - from) / (to - from || 1)) * (b - a));
  place.ticks = (most) => ticks(axis, low, high, most);
  return place;
}

// Distances, texts and decimals are the description's; here only the density is chosen.
function ticks(axis, low, high, most) {
  const { steps, divide, suffix = "", marks = [] } = axis.ticks;
  for (const level of marks) {
    const found = level.filter(([value]) => value * (1 + 1e-9) >= low && value <= high * (1 + 1e-9));
    if (found.length <= most || level === marks.at(-1)) return found;
  }
  const [step, digits] = steps.filter(([size]) => (high - low) / size <= most).at(-1) || steps[0];
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) {
    const text = `${((i * step) / divide).toFixed(digits)}${suffix}`.replaceAll("-", "−");
    found.push([i * step, i ? text : "0"]);
  }
  return found;
}

const written = (axis, value) =>
  axis.digits === undefined ? String(Number(value.toPrecision(3))) : value.toFixed(axis.digits);

function axisX(svg, axis, place, box) {
  const most = Math.max(3, Math.floor((box.right - box.left) / 62));
  for (const [value, text] of place.ticks(most)) {
    const tick = draw(svg, "g", { class: "tick" });
    const x = place(value);
    draw(tick, "line", { x1: x, x2: x, y1: box.top, y2: box.bottom });
    draw(tick, "text", { x, y: box.bottom + 16, "text-anchor": "middle" }, text);
  }
  draw(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
  const middle = (box.left + box.right) / 2;
  draw(svg, "text", { class: "unit", x: middle, y: box.bottom + 35, "text-anchor": "middle" }, axis.label);
}

function axisY(svg, axis, place, box) {
  for (const [value, text] of place.ticks(6)) {
    const tick = draw(svg, "g", { class: "tick" });
    const y = place(value);
    draw(tick, "line", { x1: box.left, x2: box.right, y1: y, y2: y });
    draw(tick, "text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, text);
  }
  if (axis.label) draw(svg, "text", { class: "unit", x: 0, y: box.top - 10 }, axis.label);
}

// Names were placed for all series on the first view; in another one those that touch are left out.
function unclash(texts) {
  const kept = [];
  for (const text of texts) {
    const a = text.getBBox();
    const touch = kept.some((b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y + 3 < b.y + b.height && b.y + 3 < a.y + a.height);
    if (touch) text.remove();
    else kept.push(a);
  }
}

// Between two colours, and along the palette of depth.
function blend(from, to, share) {
  const parts = (text) =>
    text.startsWith("rgb") ? text.match(/[\d.]+/g).slice(0, 3).map(Number) : [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  const [a, b] = [parts(from), parts(to)];
  return `rgb(${a.map((value, i) => Math.round(value + share * (b[i] - value))).join(",")})`;
}

function depthColour(t) {
  const place = Math.min(Math.max(t, 0), 1) * (DATA.depth.length - 1);
  const i = Math.min(Math.floor(place), DATA.depth.length - 2);
  return blend(DATA.depth[i], DATA.depth[i + 1], place - i);
}

// The tooltip: a title and lines of [index or null, name, value].

const tip = document.getElementById("tip");

function showTip(event, title, lines) {
  tip.replaceChildren();
  if (title) make(tip, "b", { textContent: title });
  for (const [index, name, value] of lines) {
    const line = make(tip, "div");
    const left = make(line, "span");
    if (index !== null) make(left, "i", { className: `swatch ${colour(index)}` });
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

function listen(target, move, leave = hideTip) {
  target.addEventListener("pointermove", move);
  target.addEventListener("pointerdown", move);
  target.addEventListener("pointerleave", leave);
}

// Marks are [x, y, title, lines]; the nearest one within reach speaks.
function hoverable(svg, marks, reach = 26) {
  listen(svg, (event) => {
    const box = svg.getBoundingClientRect();
    const far = ([x, y]) => Math.hypot(x - event.clientX + box.left, y - event.clientY + box.top);
    const found = marks.reduce((best, mark) => (best && far(best) <= far(mark) ? best : mark), null);
    if (found && far(found) < reach) showTip(event, found[2], found[3]);
    else hideTip();
  });
}
