"use strict";
// Figures in a plane: loss against cost, training curves, loss against depth.

const COSTS = [
  ["params", "stored parameters", short],
  ["flops", "training FLOPs", short],
  ["seconds", "training seconds", short],
];

function efficiencyFigure(host, controls, group) {
  return (width) => {
    const models = visible(group).filter((model) => model.mean !== null);
    if (!models.length) return empty(host);
    const columns = width >= 900 ? 3 : width >= 620 ? 2 : 1;
    const each = (width - 16 * (columns - 1)) / columns;
    const yDomain = extent(models.flatMap((m) => [m.mean, m.low, m.high]), 0.1);
    for (const [axis, unit, format] of COSTS) {
      const points = models.filter((model) => model[axis] > 0);
      if (!points.length) {
        make(host, "p", { className: "note", textContent: `Nothing is known about ${unit}.` });
        continue;
      }
      costPanel(host, each, group, points, yDomain, axis, unit, format);
    }
  };
}

function costPanel(host, width, group, points, yDomain, axis, unit, format) {
  const height = Math.min(340, Math.max(270, width * 0.85));
  const box = { left: 42, right: width - 12, top: 26, bottom: height - 42 };
  const svg = canvas(host, width, height, `loss against ${unit}`);
  const logs = extent(points.map((model) => Math.log(model[axis])), 0.12);
  const x = logarithmic(logs.map(Math.exp), [box.left, box.right]);
  const y = linear(yDomain, [box.bottom, box.top]);
  axisY(svg, y, box, { count: 5, unit: `${DATA.metric} loss, nats per token` });
  axisX(svg, x, box, { count: Math.floor((box.right - box.left) / 48), format: (v) => plain(format(v)), unit: `${unit} (log)` });
  const front = DATA.groups[group].fronts[axis]
    .map((label) => DATA.models.find((model) => model.label === label))
    .filter((model) => !hidden.has(model.label));
  if (front.length > 1) {
    const steps = front.map((m, i) => (i ? `H${x(m[axis])}V${y(m.mean)}` : `M${x(m[axis])},${y(m.mean)}`));
    draw(svg, "path", { class: "front", d: steps.join("") });
  }
  const taken = [];
  const marks = [];
  for (const model of points) {
    const [px, py] = [x(model[axis]), y(model.mean)];
    const group = draw(svg, "g", { class: colour(model), "data-model": model.label });
    if (model.low !== null) {
      draw(group, "line", { class: "whisker", x1: px, x2: px, y1: y(model.low), y2: y(model.high) });
    }
    symbol(group, model, px, py, 5, "point");
    taken.push([px - 6, py - 6, px + 6, py + 6]);
    const interval = model.low === null ? [] : [[null, "95 % interval", `${nats(model.low)} – ${nats(model.high)}`]];
    const value = axis === "seconds" ? seconds(model[axis]) : format(model[axis]);
    marks.push([px, py, model.label, [[null, "loss", `${nats(model.mean)} nats`], ...interval, [null, unit, value]]]);
  }
  for (const model of [...points].sort((a, b) => a.mean - b.mean)) {
    placeName(svg, model, x(model[axis]), y(model.mean), taken, box);
  }
  hoverable(svg, marks);
}

// The first place beside a point where its name touches nothing; none, and the name is left out.
function placeName(svg, model, px, py, taken, box) {
  const wide = widthOf(model.label, 600);
  const tries = [];
  for (const lift of [0, -10, 10, -20, 20, -32, 32]) {
    tries.push([px + 9, py + lift], [px - 9 - wide, py + lift]);
  }
  for (const lift of [-16, 16, -30, 30, -44, 44]) tries.push([px - wide / 2, py + lift]);
  for (const [left, middle] of tries) {
    const spot = [left - 1, middle - 6, left + wide + 1, middle + 6];
    const inside = spot[0] >= box.left - 4 && spot[2] <= box.right + 10 && spot[1] >= box.top - 6 && spot[3] <= box.bottom;
    if (!inside) continue;
    if (taken.some((t) => spot[0] < t[2] && spot[2] > t[0] && spot[1] < t[3] && spot[3] > t[1])) continue;
    taken.push(spot);
    draw(svg, "text", { class: `name halo ${colour(model)}`, x: left, y: middle + 4 }, model.label);
    return;
  }
}

// Lines: `series` are {model, x, mean, low, high}; names stand at the right end where there is room.
function linePlot(host, { width, series, x, box, height, yDomain, label, unit, axis, lines = [], points = false }) {
  const svg = canvas(host, width, height, label);
  const y = linear(yDomain, [box.bottom, box.top]);
  axisY(svg, y, box, { count: 6, unit });
  axisX(svg, x, box, axis);
  for (const line of lines) {
    const at = y(line.value);
    if (at < box.top || at > box.bottom) continue;
    draw(svg, "line", { class: "baseline", x1: box.left, x2: box.right, y1: at, y2: at });
    draw(svg, "text", { class: "aside halo", x: box.left + 6, y: at - 5 }, line.name);
  }
  const clip = `clip-${++linePlot.count}`;
  const area = draw(draw(svg, "clipPath", { id: clip }), "rect", {
    x: box.left, y: box.top - 6, width: box.right - box.left + 6, height: box.bottom - box.top + 8,
  });
  area.setAttribute("rx", 0);
  const inner = draw(svg, "g", { "clip-path": `url(#${clip})` });
  const ends = [];
  for (const one of series) {
    const group = draw(inner, "g", { class: colour(one.model), "data-model": one.model.label });
    const path = (values) => values.map((v, i) => `${x(one.x[i]).toFixed(1)},${y(v).toFixed(1)}`);
    const around = [...path(one.high), ...path(one.low).reverse()];
    if (one.x.length > 1) draw(group, "path", { class: "band", d: `M${around.join("L")}Z` });
    draw(group, "path", { class: "curve", d: `M${path(one.mean).join("L")}`, "stroke-dasharray": dash(one.model) });
    if (points || one.x.length < 2) one.x.forEach((v, i) => symbol(group, one.model, x(v), y(one.mean[i]), 4, "point"));
    const last = one.x.length - 1;
    ends.push({ model: one.model, x: x(one.x[last]), y: y(one.mean[last]) });
  }
  return { svg, inner, y, ends };
}
linePlot.count = 0;

// Names beside the ends of lines, pushed apart until none touch.
function nameEnds(svg, ends, box) {
  const ordered = ends.filter((end) => end.y >= box.top - 6 && end.y <= box.bottom + 6).sort((a, b) => a.y - b.y);
  const gap = 14;
  let floor = -Infinity;
  for (const end of ordered) floor = end.at = Math.max(end.y, floor + gap);
  let ceiling = box.bottom + 6;
  for (const end of [...ordered].reverse()) ceiling = (end.at = Math.min(end.at, ceiling)) - gap;
  for (const end of ordered) {
    const group = draw(svg, "g", { class: colour(end.model) });
    draw(group, "path", { class: "leader", d: `M${end.x + 3},${end.y}L${box.right + 12},${end.at}` });
    draw(group, "text", { class: "name halo", x: box.right + 15, y: end.at + 4 }, end.model.label);
  }
}

const gutterFor = (models, width) =>
  width < 620 ? 12 : 24 + Math.max(...models.map((model) => widthOf(model.label, 600)));

function curvesFigure(host, controls, group) {
  const units = { step: "steps", tokens: "tokens", seconds: "training seconds" };
  const state = { kind: "validation", axis: "step", zoom: null, part: "all" };
  const redraw = () => host.redraw();
  const kinds = ["validation", "train"].filter((kind) => DATA.models.some((m) => m.group === group && m.curves[kind]));
  state.kind = kinds[0];
  if (kinds.length > 1) {
    choice(controls, "", kinds.map((kind) => [kind, kind]), state.kind, (kind) => ((state.kind = kind), redraw()));
  }
  const axes = Object.entries(units).map(([axis]) => [axis, axis === "step" ? "steps" : axis]);
  choice(controls, "against", axes, "step", (axis) => ((state.axis = axis), (state.zoom = null), setPart("all"), redraw()));
  const parts = [["all", "all"], ["half", "last half"], ["quarter", "last quarter"]];
  const setPart = choice(controls, "zoom", parts, "all", (part) => ((state.part = part), (state.zoom = null), redraw()));
  return (width) => {
    const shown = visible(group).filter((m) => m.curves[state.kind] && m.curves[state.kind][state.axis]);
    if (!shown.length) return empty(host);
    const reach = Math.max(...shown.map((m) => m.curves[state.kind][state.axis].at(-1)));
    const start = { all: 0, half: reach / 2, quarter: 0.75 * reach }[state.part];
    const [from, to] = state.zoom || [start, reach];
    const box = { left: 42, right: width - gutterFor(shown, width), top: 26, bottom: 300 };
    const x = linear([from, to], [box.left, box.right]);
    const series = shown.map((model) => {
      const band = model.curves[state.kind];
      return { model, x: band[state.axis], mean: band.mean, low: band.low, high: band.high };
    });
    const seen = series.flatMap((one) =>
      one.x.flatMap((value, i) => (value >= from && value <= to ? [one.low[i], one.high[i]] : [])));
    const baselines = DATA.groups[group].baselines
      .filter((b) => b.loss.validation !== null && state.kind === "validation")
      .map((b) => ({ name: `${b.name} ${b.loss.validation.toFixed(3)}`, value: b.loss.validation }));
    const { svg, inner, y, ends } = linePlot(host, {
      width, series, x, box, height: 342, yDomain: extent(seen, 0.04), lines: baselines,
      label: `${state.kind} loss during training`,
      unit: `${state.kind} loss, nats per token`,
      axis: { count: Math.floor((box.right - box.left) / 80), format: (v) => plain(short(v)), unit: units[state.axis] },
    });
    if (width >= 620) nameEnds(svg, ends.filter((end) => end.x <= box.right + 1), box);
    crosshair(svg, inner, series, x, y, box, (v) => `${plain(short(v))} ${units[state.axis]}`);
    zoomable(svg, x, box, (range) => {
      state.zoom = range;
      setPart(range ? null : "all");
      if (!range) state.part = "all";
      redraw();
    });
  };
}

function crosshair(svg, inner, series, x, y, box, format) {
  const cross = draw(inner, "line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const move = (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    if (at < box.left - 4 || at > box.right + 4) return leave();
    const wanted = x.inverse(at);
    const lines = series.map((one) => {
      let best = 0;
      one.x.forEach((value, i) => (best = Math.abs(value - wanted) < Math.abs(one.x[best] - wanted) ? i : best));
      return [one.model, one.model.label, one.mean[best], one.x[best]];
    });
    lines.sort((a, b) => a[2] - b[2]);
    cross.setAttribute("x1", at);
    cross.setAttribute("x2", at);
    cross.setAttribute("visibility", "visible");
    showTip(event, format(lines[0][3]), lines.map(([model, name, value]) => [model, name, nats(value)]));
  };
  const leave = () => {
    cross.setAttribute("visibility", "hidden");
    hideTip();
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", leave);
}

function zoomable(svg, x, box, zoom) {
  let start = null;
  let brush = null;
  const place = (event) => Math.min(Math.max(event.clientX - svg.getBoundingClientRect().left, box.left), box.right);
  svg.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button) return;
    start = place(event);
    svg.setPointerCapture(event.pointerId);
    brush = draw(svg, "rect", { class: "brush", x: start, y: box.top, width: 0, height: box.bottom - box.top });
  });
  svg.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const now = place(event);
    brush.setAttribute("x", Math.min(start, now));
    brush.setAttribute("width", Math.abs(now - start));
  });
  svg.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [from, to] = [start, place(event)].sort((a, b) => a - b);
    start = null;
    brush.remove();
    if (to - from > 8) zoom([x.inverse(from), x.inverse(to)]);
  });
  svg.addEventListener("dblclick", () => zoom(null));
}

function depthFigure(host, controls, group) {
  return (width) => {
    const series = [];
    for (const model of visible(group)) {
      const schemes = [...new Set(model.depth.map((each) => each.scheme))];
      for (const scheme of schemes) {
        const own = model.depth.filter((each) => each.scheme === scheme && each.steps !== null);
        if (!own.length) continue;
        series.push({
          model, scheme, x: own.map((e) => e.steps),
          ...Object.fromEntries(["mean", "low", "high"].map((key) => [key, own.map((e) => e[key])])),
        });
      }
    }
    if (!series.length) return empty(host);
    const box = { left: 42, right: width - gutterFor(series.map((one) => one.model), width), top: 26, bottom: 300 };
    const steps = series.flatMap((one) => one.x);
    const logs = extent(steps.map(Math.log), 0.05);
    const x = logarithmic(logs.map(Math.exp), [box.left, box.right]);
    const all = [...new Set(steps)].sort((a, b) => a - b);
    x.ticks = () => all;
    const { svg, inner, y, ends } = linePlot(host, {
      width, series, x, box, height: 342, points: true,
      yDomain: extent(series.flatMap((one) => [...one.low, ...one.high])),
      label: "loss against depth steps", unit: "loss, nats per token",
      axis: { format: String, unit: "depth steps (log)" },
    });
    const marks = [];
    for (const one of series) {
      one.x.forEach((value, i) => {
        const at = [x(value), y(one.mean[i])];
        if (value === one.model.trainedSteps) draw(inner, "circle", { class: `ring ${colour(one.model)}`, cx: at[0], cy: at[1], r: 8 });
        marks.push([...at, one.model.label, [[null, `${value} steps, ${one.scheme}`, `${nats(one.mean[i])} nats`]]]);
      });
    }
    if (width >= 620) nameEnds(svg, ends, box);
    hoverable(svg, marks);
  };
}
