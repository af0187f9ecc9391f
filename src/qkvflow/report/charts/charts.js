"use strict";
// Panels of three kinds, and what can be done with them: hide, choose, zoom, point at.

const lines = (tip) => tip.map(([name, value]) => [null, name, value]);
const path = (points) => `M${points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L")}`;

function rows(host, panel, width, state) {
  const shown = panel.rows.filter((row) => !state.hides(row.name));
  if (!shown.length) return nothing(host);
  const narrow = width < 480;
  const gutter = narrow ? 4 : Math.min(210, 16 + Math.max(...shown.map((row) => widthOf(row.name))));
  const each = narrow ? 44 : 32;
  const view = panel.x.views[state.view] || panel.x.views[0];
  const top = 8 + 13 * (1 + Math.max(-1, ...known(view.levels || [])));
  const box = { left: gutter, right: width - 14, top, bottom: top + shown.length * each };
  const range = state.view || shown.length === panel.rows.length
    ? [view.low, view.high]
    : fitted(panel.x, shown.flatMap((row) => [...(row.values || []), row.low, row.high, row.middle]));
  const off = (panel.rules || []).filter((rule) => rule.value < range[0] || rule.value > range[1]);
  if (off.length) make(host, "p", { className: "note", textContent: `Off the axis: ${off.map((rule) => rule.name).join(", ")}.` });
  const svg = canvas(host, width, box.bottom + 42, panel.title || panel.x.label);
  const x = scale(panel.x, range, [box.left + 4, box.right]);
  axisX(svg, panel.x, x, box);
  ruleNames(svg, panel.rules || [], view.levels || [], x, box, range);
  const marks = [];
  shown.forEach((row, number) => {
    const y = box.top + (number + 0.5) * each + (narrow ? 8 : 0);
    const group = draw(svg, "g", { class: colour(row.index), "data-model": row.name });
    const name = narrow ? { x: box.left, y: y - 15, class: "name halo" } : { x: box.left - 10, y: y + 4, "text-anchor": "end", class: "name" };
    draw(group, "text", name, row.name);
    const at = x(row.middle);
    if (panel.stems) draw(group, "line", { class: "stem", x1: x(0), x2: at, y1: y, y2: y });
    if (row.low !== undefined) {
      draw(group, "rect", { class: "range", x: x(row.low), width: Math.max(1, x(row.high) - x(row.low)), y: y - 9, height: 18, rx: 2 });
    }
    const dots = row.values || [];
    dots.forEach((value, i) => {
      // A fixed spread keeps dots apart; their height means nothing.
      const lift = dots.length > 1 ? 2.6 * (((i * 2) % 5) - 2) : 0;
      symbol(group, row.index, x(value), y + lift, 3.6, "dot");
      marks.push([x(value), y + lift, row.name, lines(row.tips[i])]);
    });
    if (dots.length) draw(group, "line", { class: "mean", x1: at, x2: at, y1: y - 10, y2: y + 10 });
    else symbol(group, row.index, at, y, 5, "point");
    if (row.note) {
      const end = x(Math.max(...known([row.middle, row.high, ...dots]))) + 8;
      draw(group, "text", { class: "aside halo", x: end, y: y + 4 }, row.note);
    }
    marks.push([at, y, row.name, lines(row.tip)]);
  });
  hoverable(svg, marks);
}

function ruleNames(svg, rules, levels, x, box, [low, high]) {
  const names = [];
  rules.forEach((rule, i) => {
    if (rule.value < low || rule.value > high) return;
    const at = x(rule.value);
    draw(svg, "line", { class: "baseline", x1: at, x2: at, y1: box.top - 4, y2: box.bottom });
    if (levels[i] === null || levels[i] === undefined) return;
    const half = widthOf(rule.name) / 2;
    const middle = Math.min(Math.max(at, half), box.right - half + 10);
    names.push(draw(svg, "text", { class: "aside", x: middle, y: box.top - 9 - 13 * levels[i], "text-anchor": "middle" }, rule.name));
  });
  unclash(names);
}

function plot(host, panel, width, state) {
  const shown = panel.series.filter((one) => !state.hides(one.name)).map((one) => remaining(one, state));
  if (!shown.some((one) => one.look !== "front")) return nothing(host);
  const height = panel.equal ? Math.min(420, width) : Math.round(EM * panel.height) + 20;
  const ends = panel.ends && width >= 620;
  const gutter = ends ? 24 + Math.max(...shown.map((one) => widthOf(one.name))) : 12;
  const box = { left: 50, right: width - gutter, top: 26, bottom: height - 42 };
  const [dx, dy] = ranges(panel, shown, state, box);
  const svg = canvas(host, width, height, [panel.title, panel.y.label, panel.x.label].filter(Boolean).join(", "));
  const x = scale(panel.x, dx, [box.left, box.right]);
  const y = scale(panel.y, dy, [box.bottom, box.top]);
  axisY(svg, panel.y, y, box);
  axisX(svg, panel.x, x, box);
  const clip = `clip-${++plot.count}`;
  const area = { x: box.left - 6, y: box.top - 8, width: box.right - box.left + 12, height: box.bottom - box.top + 16 };
  draw(draw(svg, "clipPath", { id: clip }), "rect", area);
  const inner = draw(svg, "g", { "clip-path": `url(#${clip})` });
  if (!panel.x.log && dx[0] < 0 && dx[1] > 0) draw(inner, "line", { class: "zero", x1: x(0), x2: x(0), y1: box.top, y2: box.bottom });
  if (!panel.y.log && dy[0] < 0 && dy[1] > 0) draw(inner, "line", { class: "zero", x1: box.left, x2: box.right, y1: y(0), y2: y(0) });
  for (const rule of panel.rules || []) {
    if (rule.value < dy[0] || rule.value > dy[1]) continue;
    draw(inner, "line", { class: "baseline", x1: box.left, x2: box.right, y1: y(rule.value), y2: y(rule.value) });
    draw(inner, "text", { class: "aside halo", x: box.left + 6, y: y(rule.value) - 5 }, rule.name);
  }
  const marks = shown.flatMap((one) => series(inner, panel, one, x, y));
  const names = [];
  for (const one of shown) {
    (one.labels || []).forEach((label, i) => {
      if (!label || one.x[i] < dx[0] || one.x[i] > dx[1]) return;
      const px = x(one.x[i]);
      const wide = EM * Math.abs(label.dx) + widthOf(label.text);
      // Where the axes have moved a name may stand on the other side of its point.
      const turn = label.anchor === "start" ? px + wide > box.right + 12 : label.anchor === "end" && px - wide < box.left;
      const side = turn ? { start: "end", end: "start" }[label.anchor] : label.anchor;
      const at = { x: px + (turn ? -EM : EM) * label.dx, y: y(one.y[i]) - EM * label.dy + 4, "text-anchor": side };
      names.push(draw(svg, "text", { class: `name halo ${colour(one.index)}`, ...at }, label.text));
    });
  }
  if (state.fitted) unclash(names);
  if (ends) nameEnds(svg, shown, x, y, box, dx);
  if (panel.crosshair) crosshair(svg, inner, panel, shown, x, box);
  else hoverable(svg, marks, shown.some((one) => one.depth) ? 14 : 26);
  if (!panel.equal) zoomable(svg, x, box, state.zoomTo);
  if (panel.legend) legend(host, panel, state);
}
plot.count = 0;

// The points of a front whose models are shown.
function remaining(one, state) {
  if (!one.members) return one;
  const kept = one.members.flatMap((name, i) => (state.hides(name) ? [] : [i]));
  return { ...one, x: kept.map((i) => one.x[i]), y: kept.map((i) => one.y[i]) };
}

function ranges(panel, shown, state, box) {
  const views = panel.x.views;
  const view = views[state.view] || views[0];
  const part = shown.length < panel.series.length;
  let dx = state.zoom || (part && views.length < 2 ? fitted(panel.x, shown.flatMap((one) => one.x)) : [view.low, view.high]);
  let dy = [panel.y.views[0].low, panel.y.views[0].high];
  state.fitted = Boolean(state.zoom || state.view || part);
  if (state.fitted) {
    dy = fitted(panel.y, shown.flatMap((one) => [one.y, one.low || [], one.high || []].flatMap((values) =>
      values.filter((_, i) => one.x[i] >= dx[0] && one.x[i] <= dx[1]))));
  }
  if (panel.equal) {
    const [w, h] = [box.right - box.left, box.bottom - box.top];
    const unit = Math.max((dx[1] - dx[0]) / w, (dy[1] - dy[0]) / h);
    const around = ([low, high], size) => [(low + high - unit * size) / 2, (low + high + unit * size) / 2];
    [dx, dy] = [around(dx, w), around(dy, h)];
  }
  return [dx, dy];
}

// Draw one series; what it answers to the pointer is returned.
function series(parent, panel, one, x, y) {
  const points = one.x.map((value, i) => (one.y[i] === null ? null : [x(value), y(one.y[i])]));
  const group = draw(parent, "g", { class: colour(one.index), "data-model": one.name || "" });
  const look = one.look;
  if (look === "front") {
    const steps = points.map(([px, py], i) => (i ? `H${px}V${py}` : `M${px},${py}`));
    if (points.length > 1) draw(group, "path", { class: "front", d: steps.join("") });
    return [];
  }
  if (one.low && (look === "points" || one.labels)) {
    one.low.forEach((low, i) => draw(group, "line", { class: "whisker", x1: x(one.x[i]), x2: x(one.x[i]), y1: y(low), y2: y(one.high[i]) }));
  } else if (one.low && one.x.length > 1) {
    const edge = (values) => one.x.map((value, i) => [x(value), y(values[i])]);
    draw(group, "path", { class: "band", d: `${path([...edge(one.high), ...edge(one.low).reverse()])}Z` });
  }
  if (!["points", "spots"].includes(look)) {
    // A line has gaps where there is no number.
    const parts = points.reduce((all, point) => (point ? all.at(-1).push(point) : all.push([]), all), [[]]);
    const style = { class: { thin: "thin", path: "path" }[look] || "curve", "stroke-dasharray": look === "path" ? "" : dash(one.index) };
    draw(group, "path", { d: parts.filter((part) => part.length).map(path).join(""), ...style });
  }
  points.forEach((point, i) => {
    if (!point) return;
    if (one.depth) draw(group, "circle", { class: "spot", cx: point[0].toFixed(1), cy: point[1].toFixed(1), r: look === "path" ? 3 : 2.2, fill: depthColour(one.depth[i]), "fill-opacity": 0.8 });
    else if (look === "dots" || look === "points" || (one.x.length < 2 && look !== "thin")) symbol(group, one.index, ...point, look === "points" ? 5 : 3.6, "point");
  });
  for (const i of one.rings || []) draw(group, "circle", { class: "ring", cx: points[i][0], cy: points[i][1], r: 8 });
  return points.flatMap((point, i) => {
    if (!point) return [];
    if (one.tips) return [[...point, one.name, lines(one.tips[i])]];
    const title = one.depth ? "" : `${panel.x.label} ${written(panel.x, one.x[i])}`;
    const value = one.depth ? `t = ${Number(one.depth[i].toPrecision(3))}` : written(panel.y, one.y[i]);
    return [[...point, title, [[one.depth ? null : one.index, one.name, value]]]];
  });
}

// Names beside the ends of lines: one under the other in the order of the ends, about their middle.
function nameEnds(svg, shown, x, y, box, [low, high]) {
  const gap = 14;
  const ends = shown.flatMap((one) => {
    const last = one.x.at(-1);
    return last >= low && last <= high * (1 + 1e-9) && one.y.at(-1) !== null ? [{ one, x: x(last), y: y(one.y.at(-1)) }] : [];
  }).sort((a, b) => a.y - b.y);
  const middle = ends.reduce((sum, end) => sum + end.y, 0) / ends.length;
  const start = Math.max(box.top, Math.min(middle - (gap * (ends.length - 1)) / 2, box.bottom - gap * (ends.length - 1)));
  ends.forEach((end, i) => {
    const group = draw(svg, "g", { class: colour(end.one.index) });
    draw(group, "path", { class: "leader", d: `M${end.x + 3},${end.y}L${box.right + 12},${start + gap * i}` });
    draw(group, "text", { class: "name halo", x: box.right + 15, y: start + gap * i + 4 }, end.one.name);
  });
}

function crosshair(svg, inner, panel, shown, x, box) {
  const cross = draw(inner, "line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const leave = () => {
    cross.setAttribute("visibility", "hidden");
    hideTip();
  };
  listen(svg, (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    if (at < box.left - 4 || at > box.right + 4) return leave();
    const wanted = x.inverse(at);
    const nearest = shown.map((one) => {
      const i = one.x.reduce((best, value, j) => (Math.abs(value - wanted) < Math.abs(one.x[best] - wanted) ? j : best), 0);
      return [one.index, one.name, one.y[i], one.x[i]];
    }).filter(([, , value]) => value !== null).sort((a, b) => a[2] - b[2]);
    if (!nearest.length) return leave();
    for (const end of ["x1", "x2"]) cross.setAttribute(end, at);
    cross.setAttribute("visibility", "visible");
    const title = `${panel.x.label} ${written(panel.x, nearest[0][3])}`;
    showTip(event, title, nearest.map(([index, name, value]) => [index, name, written(panel.y, value)]));
  }, leave);
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
    brush.setAttribute("x", Math.min(start, place(event)));
    brush.setAttribute("width", Math.abs(place(event) - start));
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

function legend(host, panel, state) {
  const row = make(host, "p", { className: "legend" });
  for (const one of panel.series.filter((each) => each.look !== "thin")) {
    const item = make(row, "button", { type: "button", className: "item" });
    make(item, "i", { className: `swatch ${colour(one.index)}` });
    item.append(one.name);
    item.setAttribute("aria-pressed", String(!state.hides(one.name)));
    item.addEventListener("click", () => state.toggle(one.name));
  }
}

function heat(host, panel) {
  const image = make(host, "canvas");
  const [height, width] = [panel.values.length, panel.x.length];
  Object.assign(image, { width, height });
  image.style.height = `${Math.max(60, Math.min(180, height * 6))}px`;
  const paper = getComputedStyle(document.body).backgroundColor;
  const context = image.getContext("2d");
  panel.values.forEach((row, i) => row.forEach((value, j) => {
    const away = (value - panel.middle[i]) / panel.most;
    context.fillStyle = blend(paper, DATA.around[away < 0 ? 0 : 1], Math.min(1, Math.abs(away)));
    context.fillRect(j, i, 1, 1);
  }));
  make(host, "p", { className: "legend", textContent: panel.note });
  const place = (at, from, size, count) => Math.min(count - 1, Math.max(0, Math.floor(((at - from) / size) * count)));
  listen(image, (event) => {
    const frame = image.getBoundingClientRect();
    const [i, j] = [place(event.clientY, frame.top, frame.height, height), place(event.clientX, frame.left, frame.width, width)];
    const where = `${panel.y_label} ${i + 1}, ${panel.x_label} = ${Number(panel.x[j].toPrecision(3))}`;
    showTip(event, panel.title, [[null, where, String(Number(panel.values[i][j].toPrecision(3)))]]);
  });
}

function nothing(host) {
  make(host, "p", { className: "note", textContent: "Nothing is chosen." });
}
