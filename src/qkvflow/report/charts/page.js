"use strict";
// Put every figure in its place, and draw again when the width or what is shown changes.

const KINDS = { plot, rows, heat };
const LEAST = { plot: 300, rows: 430, heat: 260 };
const hidden = new Set();

// A row of buttons of which one is chosen.
function choice(controls, name, options, act) {
  const row = make(controls, "div");
  if (name) make(row, "span", { textContent: name });
  const buttons = options.map((text) => {
    const button = make(row, "button", { type: "button", textContent: text });
    button.addEventListener("click", () => (set(text), act(text)));
    return [text, button];
  });
  const set = (chosen) => {
    for (const [own, button] of buttons) button.setAttribute("aria-pressed", String(own === chosen));
  };
  set(options[0]);
  return set;
}

function figureIn(host) {
  const figure = DATA.figures[host.dataset.figure];
  const controls = host.parentElement.querySelector(".controls");
  const own = new Set();
  const chosen = {};
  let view = 0;
  const zooms = new Map();
  const names = new Map();
  for (const panel of figure.panels) {
    for (const [name, option] of panel.choice || []) names.set(name, (names.get(name) || new Set()).add(option));
  }
  for (const [name, options] of names) {
    chosen[name] = [...options][0];
    if (options.size > 1) choice(controls, name, [...options], (option) => ((chosen[name] = option), reset(0)));
  }
  const axis = figure.panels[0].x;
  const texts = axis.views && axis.views.length > 1 ? axis.views.map((each) => each.text) : [];
  const mark = texts.length ? choice(controls, axis.control, texts, (text) => reset(texts.indexOf(text))) : () => {};
  function reset(to) {
    view = to;
    zooms.clear();
    mark(texts[to]);
    render();
  }
  function render() {
    hideTip();
    host.replaceChildren();
    const width = Math.floor(host.clientWidth);
    const panels = figure.panels.filter((panel) => (panel.choice || []).every(([name, option]) => chosen[name] === option));
    const most = panels.length === 4 ? Math.min(2, figure.columns) : Math.min(panels.length, figure.columns);
    const room = Math.floor((width + 16) / (LEAST[panels[0].kind] + 16));
    const columns = Math.max(1, Math.min(most, room));
    const each = Math.floor((width - 16 * (columns - 1)) / columns);
    panels.forEach((panel, number) => {
      const holder = make(host, "div", { className: "panel" });
      holder.style.width = `${each}px`;
      if (panel.title && panels.length > 1) make(holder, "h4", { textContent: panel.title });
      const key = JSON.stringify([number, chosen]);
      KINDS[panel.kind](holder, panel, each, {
        view,
        zoom: zooms.get(key),
        zoomTo: (range) => (range ? (zooms.set(key, range), mark(null), render()) : reset(0)),
        hides: (name) => hidden.has(name) || own.has(name),
        toggle: (name) => (own.delete(name) || own.add(name), render()),
      });
    });
    if (panels.some((panel) => (panel.series || []).some((one) => one.depth))) depthKey(host);
  }
  return render;
}

function depthKey(host) {
  const key = canvas(make(host, "div", { className: "whole" }), 240, 34, "colours of depth");
  for (let i = 0; i < 40; i++) draw(key, "rect", { x: 20 + i * 5, y: 4, width: 5.5, height: 10, fill: depthColour(i / 39) });
  draw(key, "text", { class: "aside", x: 20, y: 30 }, "t = 0");
  draw(key, "text", { class: "aside", x: 220, y: 30, "text-anchor": "end" }, "t = 1");
}

const figures = [...document.querySelectorAll(".plot")].map(figureIn);
const redrawAll = () => figures.forEach((render) => render());

let width = 0;
new ResizeObserver(() => {
  // Only the width matters: drawing changes the height.
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  redrawAll();
}).observe(document.body);
// Heat maps are painted in the colours of the background.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
addEventListener("scroll", hideTip, { passive: true });

const chips = [...document.querySelectorAll(".chip[data-model]")];
function show(chip, yes) {
  hidden[yes ? "delete" : "add"](chip.dataset.model);
  chip.setAttribute("aria-pressed", String(yes));
}
for (const chip of chips) {
  chip.addEventListener("click", () => (show(chip, hidden.has(chip.dataset.model)), redrawAll()));
}
document.getElementById("show-all")?.addEventListener("click", () => {
  // All models, or none when all are shown: a quick way to pick out a few.
  const all = hidden.size > 0;
  for (const chip of chips) show(chip, all);
  redrawAll();
});

// Cells of tables and pieces of text speak; a figure with a place for it keeps what was chosen.
for (const piece of document.querySelectorAll("[data-tip]")) {
  const place = piece.closest("figure").querySelector(".chosen");
  const tell = (event) => {
    const box = piece.getBoundingClientRect();
    showTip({ clientX: event.clientX ?? box.left, clientY: event.clientY ?? box.top }, piece.dataset.tip, []);
  };
  const choose = () => {
    piece.closest("figure").querySelector("[aria-selected]")?.removeAttribute("aria-selected");
    piece.setAttribute("aria-selected", "true");
    place.textContent = piece.dataset.tip;
  };
  for (const kind of place ? ["click", "focus"] : ["pointermove", "focus"]) piece.addEventListener(kind, place ? choose : tell);
  for (const kind of ["pointerleave", "blur"]) piece.addEventListener(kind, hideTip);
}
