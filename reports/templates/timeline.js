"use strict";
// One step on a canvas. What is narrower than a pixel is added up by pixel, so that a view costs as much as it is wide.
window.drawTimeline = async (t, { time, save }) => {
  const tr = window.tr;
  const box = document.getElementById("timeline"), canvas = box.querySelector("canvas"), pen = canvas.getContext("2d");
  const byId = (id) => document.getElementById(id);
  const ROW = 17, GAP = 24, TOP = 24, DEPTH = 60, FOOT = 8, SPACE = 8, NAMED_ROWS = 5, THIN = 7, MAX_EACH = 4000, MAX_ARROWS = 120;
  const msOf = (units) => (units * t.unit) / 1e6;
  const spanText = (units) => time(msOf(units));

  const column = await window.unpackColumns(t.packed);
  if (!column) {
    byId("detail").textContent = tr("This browser is too old for the timeline: it needs one of 2023 or later.");
    return;
  }
  const [num, numGaps, numDepths] = t.counts;
  const start = column(num), length = column(num), name = column(num), category = column(num), packedLaunch = column(num);
  const gapStart = column(numGaps), gapLength = column(numGaps), gapCause = column(numGaps), gapDetail = column(numGaps), gapPlace = column(numGaps);
  const depthAt = column(numDepths), depth = column(numDepths);

  const first = new Uint32Array(t.rows.length + 1), rowOf = new Uint16Array(num);
  t.rows.forEach((count, row) => { first[row + 1] = first[row] + count; rowOf.fill(row, first[row], first[row + 1]); });
  const launch = new Int32Array(num), covered = new Float64Array(num + 1);
  for (let i = 0, before = 0; i < num; i++) {
    if (i > first[rowOf[i]]) start[i] += start[i - 1];
    const z = packedLaunch[i];
    launch[i] = before += z & 1 ? -((z + 1) / 2) : z / 2;
    covered[i + 1] = covered[i] + length[i];
  }
  for (let i = 1; i < numGaps; i++) gapStart[i] += gapStart[i - 1];
  for (let i = 1; i < numDepths; i++) depthAt[i] += depthAt[i - 1];
  const tasksOf = new Map();
  for (let i = 0; i < num; i++) if (launch[i] >= 0) tasksOf.has(launch[i]) ? tasksOf.get(launch[i]).push(i) : tasksOf.set(launch[i], [i]);
  const gapOrder = [...gapLength.keys()].sort((a, b) => gapLength[b] - gapLength[a]);
  const maxDepth = Math.max(1, depth.reduce((a, b) => Math.max(a, b), 0));
  const short = (id) => t.names[id][0], full = (id) => t.names[id][t.names[id].length - 1];

  let from = 0, to = t.length, chosen = null, printing = false, wide = 0, matches = null, coveredMatch = null, found = [], foundAt = -1, gapAt = -1;
  const device = t.lanes.filter((lane) => lane.device).reduce((sum, lane) => sum + lane.rows, 0);
  const gapTop = TOP, rowsTop = TOP + (numGaps ? GAP : 0) + 4, laneOfRow = [], rowTops = [], rowHeights = [];
  let depthTop = 0, high = 0;
  // In the whole step, calls nested deeper are too short for their names, so their rows are thin until a part is shown.
  function layOut(isPart) {
    depthTop = rowsTop;
    t.lanes.forEach((lane, i) => {
      depthTop += SPACE;
      for (let r = 0; r < lane.rows; r++) {
        const row = lane.row + r;
        laneOfRow[row] = i;
        rowTops[row] = depthTop;
        depthTop += rowHeights[row] = r < NAMED_ROWS || isPart ? ROW : THIN;
      }
    });
    high = depthTop + (numDepths ? DEPTH + 16 : 0) + FOOT;
  }
  layOut(false);
  const rowTop = (row) => rowTops[row], tallOf = (row) => rowHeights[row] - (rowHeights[row] === ROW ? 3 : 1);
  const gutter = () => (wide < 640 ? 0 : 200);
  const x = (at) => gutter() + ((at - from) / (to - from)) * (wide - gutter());
  const atX = (px) => from + ((px - gutter()) / (wide - gutter())) * (to - from);

  const cache = {};
  function colours() {
    const style = getComputedStyle(document.documentElement), get = (key) => style.getPropertyValue(key).trim();
    return printing ? { ink: "#000", soft: "#444c56", line: "#d5d8dc", card: "#fff", link: "#24579f", track: "#f2f3f5" }
      : { ink: get("--ink"), soft: get("--soft"), line: get("--line"), card: get("--card"), link: get("--link"), track: get("--sunk") };
  }
  function textOn(colour) {
    if (!cache[colour]) {
      const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
      cache[colour] = 0.3 * r + 0.59 * g + 0.11 * b > 150 ? "#10141a" : "#ffffff";
    }
    return cache[colour];
  }
  const stripes = {};
  function striped(colour) {
    if (!stripes[colour]) {
      const tile = document.createElement("canvas"), p = tile.getContext("2d");
      tile.width = tile.height = 8;
      p.fillStyle = colour;
      p.fillRect(0, 0, 8, 8);
      p.strokeStyle = "rgba(255,255,255,0.35)";
      p.lineWidth = 2;
      p.beginPath();
      for (const d of [-8, 0, 8]) { p.moveTo(d, 8); p.lineTo(d + 8, 0); }
      p.stroke();
      stripes[colour] = pen.createPattern(tile, "repeat");
    }
    return stripes[colour];
  }

  // The first span of a row that begins after a moment; the one before it may still run.
  function after(row, moment) {
    let low = first[row], top = first[row + 1];
    while (low < top) {
      const middle = (low + top) >> 1;
      if (start[middle] <= moment) low = middle + 1; else top = middle;
    }
    return low;
  }

  function label(text, left, width, top, colour, size = 11) {
    const room = Math.floor((width - 7) / (size * 0.56));
    if (room < 3) return;
    pen.fillStyle = colour;
    pen.font = `${size}px system-ui, sans-serif`;
    pen.fillText(text.length > room ? text.slice(0, room - 1) + "…" : text, left + 4, top);
  }

  function drawRow(row, c) {
    const top = rowTop(row), tall = tallOf(row), left = gutter();
    let i = Math.max(after(row, from) - 1, first[row]);
    const end = after(row, to);
    if (end - i > MAX_EACH) return drawDense(row, top, tall, c);
    const narrow = new Float32Array(wide + 2), tone = new Uint8Array(wide + 2);
    for (; i < end; i++) {
      const a = Math.max(x(start[i]), left), b = Math.min(x(start[i] + length[i]), wide);
      if (b < left || a > wide) continue;
      const is = matches ? matches[name[i]] : 1;
      if (b - a < 1) { narrow[a | 0] += (is ? b - a : (b - a) / 5) + 0.02; tone[a | 0] = category[i]; continue; }
      const colour = t.categories[category[i]].colour;
      pen.globalAlpha = is ? 1 : 0.18;
      pen.fillStyle = colour;
      pen.fillRect(a, top, Math.max(b - a - 0.5, 0.8), tall);
      if (b - a > 26 && tall > THIN) label(short(name[i]), a, b - a, top + tall - 4.5, is ? textOn(colour) : c.ink);
      pen.globalAlpha = 1;
    }
    for (let px = left | 0; px <= wide; px++) if (narrow[px]) paint(px, narrow[px], tone[px], top, tall);
    pen.globalAlpha = 1;
  }

  function paint(px, share, tone, top, tall) {
    pen.globalAlpha = Math.min(1, Math.max(0.22, share));
    pen.fillStyle = t.categories[tone].colour;
    pen.fillRect(px, top, 1, tall);
  }

  function drawDense(row, top, tall) {
    const sums = matches ? coveredMatch : covered, each = (to - from) / (wide - gutter());
    let i = after(row, from);
    for (let px = gutter() | 0; px < wide; px++) {
      const next = after(row, atX(px + 1)), share = (sums[next] - sums[i]) / each;
      const last = Math.max(next - 1, first[row]), running = next === i && start[last] + length[last] > atX(px) && (!matches || matches[name[last]]);
      if (share > 0 || running) paint(px, running ? 1 : share, category[last], top, tall);
      i = next;
    }
    pen.globalAlpha = 1;
  }

  function drawGaps(c) {
    const below = rowsTop, bottom = rowTop(Math.max(device - 1, 0)) + ROW;
    for (let i = 0; i < numGaps; i++) {
      const a = Math.max(x(gapStart[i]), gutter()), b = Math.min(x(gapStart[i] + gapLength[i]), wide);
      if (b < gutter() || a > wide) continue;
      const cause = t.causes[gapCause[i]];
      pen.globalAlpha = 0.16;
      pen.fillStyle = cause.colour;
      if (device) pen.fillRect(a, below, Math.max(b - a, 0.5), bottom - below);
      pen.globalAlpha = b - a < 1 ? Math.max(b - a, 0.15) : 1;
      pen.fillStyle = b - a > 6 ? striped(cause.colour) : cause.colour;
      pen.fillRect(a, gapTop, Math.max(b - a, 1), GAP - 4);
      pen.globalAlpha = 1;
      if (b - a > 40) {
        const place = short(gapPlace[i]), text = `${cause.name} ${spanText(gapLength[i])}${place ? ` · ${place}` : ""}`;
        const width = Math.min(b - a - 4, text.length * 6.2 + 8);
        pen.fillStyle = cause.colour;
        pen.fillRect(a + 2, gapTop + 2, width, GAP - 8);
        label(text, a + 2, width + 6, gapTop + GAP - 9, textOn(cause.colour));
      }
    }
  }

  function drawDepth(c) {
    if (!numDepths) return;
    const bottom = depthTop + 12 + DEPTH, scale = DEPTH / Math.log1p(maxDepth), left = gutter();
    const tops = new Float32Array(wide + 2).fill(-1);
    let low = 0, top = numDepths;
    while (low < top) { const middle = (low + top) >> 1; if (depthAt[middle] <= from) low = middle + 1; else top = middle; }
    let value = low ? depth[low - 1] : 0;
    for (let px = left | 0; px <= wide; px++) {
      const end = atX(px + 1);
      tops[px] = value;
      while (low < numDepths && depthAt[low] < end) { value = depth[low++]; tops[px] = Math.max(tops[px], value); }
    }
    pen.beginPath();
    pen.moveTo(left, bottom);
    for (let px = left | 0; px <= wide; px++) { const y = bottom - Math.log1p(tops[px]) * scale; pen.lineTo(px, y); pen.lineTo(px + 1, y); }
    pen.lineTo(wide, bottom);
    pen.fillStyle = "rgba(91,127,166,0.32)";
    pen.fill();
    pen.strokeStyle = "#5b7fa6";
    pen.lineWidth = 1;
    pen.stroke();
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = c.soft;
    for (let value = 1; value <= maxDepth; value *= 10) {
      const y = bottom - Math.log1p(value) * scale;
      pen.fillRect(left, y, wide - left, 0.4);
      pen.fillText(String(value), left + 3, y - 2);
    }
  }

  function drawAxis(c) {
    const span = to - from, raw = msOf(span) / Math.max(3, (wide - gutter()) / 110), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    const perMs = 1e6 / t.unit;
    pen.font = "11.5px system-ui, sans-serif";
    for (let ms = Math.ceil(msOf(from) / step) * step; ms <= msOf(to); ms += step) {
      const px = x(ms * perMs);
      pen.fillStyle = c.line;
      pen.fillRect(px, TOP - 5, 1, high - TOP);
      pen.fillStyle = c.soft;
      const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
      const text = `${ms.toFixed(Math.min(digits, 6))}${px < gutter() + 60 ? " ms" : ""}`;
      if (px + 3 + pen.measureText(text).width < wide) pen.fillText(text, px + 3, 13);
    }
  }

  function drawLabels(c) {
    const left = gutter();
    pen.font = "12px system-ui, sans-serif";
    if (left) {
      pen.fillStyle = c.card;
      pen.fillRect(0, 0, left - 4, high);
    }
    const write = (text, top) => {
      if (!left) { pen.globalAlpha = 0.8; pen.fillStyle = c.card; pen.fillRect(0, top - 11, Math.min(text.length * 6.4 + 6, wide), 13); pen.globalAlpha = 1; }
      pen.fillStyle = c.ink;
      const room = left ? 30 : 60;
      pen.fillText(text.length > room ? text.slice(0, room - 1) + "…" : text, left ? 8 : 2, top);
    };
    if (numGaps && left) write(device ? "GPU idle, by cause" : "by cause", gapTop + GAP - 9);
    for (const lane of t.lanes) write(lane.label, rowTop(lane.row) + (left ? ROW - 6 : -1));
    if (numDepths) write("queue depth", depthTop + (left ? 24 : 10));
  }

  function arrow(task, c, strong) {
    const call = launch[task], x0 = x(start[call] + length[call]), y0 = rowTop(rowOf[call]) + 2, x1 = x(start[task]), y1 = rowTop(rowOf[task]) + tallOf(rowOf[task]);
    if (Math.max(x0, x1) < gutter() || Math.min(x0, x1) > wide) return;
    pen.strokeStyle = c.link;
    pen.globalAlpha = strong ? 1 : 0.35;
    pen.lineWidth = strong ? 1.8 : 1;
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x1 - 3.5, y1 + 7); pen.lineTo(x1, y1); pen.lineTo(x1 + 3.5, y1 + 7);
    pen.stroke();
    pen.globalAlpha = 1;
  }

  function drawArrows(c) {
    const seen = [];
    for (const lane of t.lanes) {
      if (!lane.device) continue;
      for (let i = after(lane.row, from); i < first[lane.row + 1] && start[i] < to; i++) {
        if (launch[i] >= 0) seen.push(i);
        if (seen.length > MAX_ARROWS) break;
      }
    }
    if (seen.length <= Math.min(MAX_ARROWS, (wide - gutter()) / 10)) seen.forEach((i) => arrow(i, c, false));
    if (!chosen || chosen.kind !== "span") return;
    if (launch[chosen.at] >= 0) arrow(chosen.at, c, true);
    (tasksOf.get(chosen.at) || []).slice(0, 200).forEach((i) => arrow(i, c, true));
  }

  function outline(c) {
    if (!chosen) return;
    const [a, n] = chosen.kind === "span" ? [start[chosen.at], length[chosen.at]] : [gapStart[chosen.at], gapLength[chosen.at]];
    const top = chosen.kind === "span" ? rowTop(rowOf[chosen.at]) : gapTop, tall = chosen.kind === "span" ? tallOf(rowOf[chosen.at]) : GAP - 4;
    pen.strokeStyle = c.ink;
    pen.lineWidth = 2;
    pen.strokeRect(x(a) - 1, top - 1, Math.max(x(a + n) - x(a) + 1.5, 3), tall + 2);
  }

  let waiting = false;
  function draw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; render(); });
  }

  function render() {
    const began = performance.now(), ratio = printing ? 2 : devicePixelRatio || 1, c = colours();
    wide = printing ? 690 : box.clientWidth;
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(high * ratio);
      canvas.style.height = `${high}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = c.card;
    pen.fillRect(0, 0, wide, high);
    drawAxis(c);
    pen.save();
    pen.beginPath();
    pen.rect(gutter(), 0, wide - gutter(), high);
    pen.clip();
    drawGaps(c);
    for (let row = 0; row < t.rows.length; row++) drawRow(row, c);
    drawDepth(c);
    drawArrows(c);
    outline(c);
    pen.restore();
    drawLabels(c);
    Object.assign(box.dataset, { from: msOf(from).toFixed(6), to: msOf(to).toFixed(6), took: (performance.now() - began).toFixed(1) });
  }

  function view(a, b) {
    const least = Math.max(40 / t.unit, t.length / 1e7), size = Math.min(Math.max(b - a, least), t.length);
    from = Math.min(Math.max(a + (b - a - size) / 2, 0), t.length - size);
    to = from + size;
    layOut(size < t.length);
    draw();
  }
  const zoom = (factor, at = (from + to) / 2) => view(at - (at - from) * factor, at + (to - at) * factor);
  const move = (share) => view(from + (to - from) * share, to + (to - from) * share);
  function goTo(a, n, pad = 0.6) {
    const around = Math.max(n * pad, t.length / 1e5);
    view(a - around, a + n + around);
    box.scrollIntoView({ block: "nearest" });
  }

  const detail = byId("detail");
  function tell(head, code, more) {
    const c = document.createElement("code");
    c.textContent = code;
    detail.replaceChildren(head, c, more ? ` ${more}` : "");
  }
  function choose(kind, at) {
    chosen = at < 0 ? null : { kind, at };
    if (kind === "span" && at >= 0) {
      const tasks = tasksOf.get(at);
      let delay = "";
      if (launch[at] >= 0) delay = tr("launched by {name} {time} before", { name: short(name[launch[at]]), time: spanText(Math.max(start[at] - start[launch[at]] - length[launch[at]], 0)) });
      else if (tasks) delay = tr("launches {what}", { what: tasks.length > 1 ? tr("{num} tasks", { num: tasks.length }) : short(name[tasks[0]]) });
      tell(tr("{what}, {time} from {start}", { what: t.categories[category[at]].label || t.categories[category[at]].name, time: spanText(length[at]), start: spanText(start[at]) }), full(name[at]), delay);
    } else if (at >= 0) {
      const cause = t.causes[gapCause[at]], place = full(gapPlace[at]) || (cause.place && tr("mostly at {place}", { place: cause.place }));
      tell(`${tr("{what}, {time} from {start}", { what: cause.name, time: spanText(gapLength[at]), start: spanText(gapStart[at]) })}${cause.label ? `: ${cause.label}` : ""}`, full(gapDetail[at]), place);
    }
    draw();
  }

  function hit(px, py) {
    const moment = atX(px), near = ((to - from) / (wide - gutter())) * 2.5;
    if (numGaps && py >= gapTop && py < gapTop + GAP) {
      let best = -1;
      for (let i = 0; i < numGaps; i++) if (gapStart[i] - near <= moment && gapStart[i] + gapLength[i] + near >= moment && (best < 0 || gapLength[i] > gapLength[best])) best = i;
      return { kind: "gap", at: best };
    }
    const row = t.rows.findIndex((_, r) => py >= rowTop(r) && py < rowTop(r) + rowHeights[r]);
    if (row < 0) return { kind: "span", at: -1 };
    const i = after(row, moment);
    for (const at of [i - 1, i]) {
      if (at >= first[row] && at < first[row + 1] && start[at] - near <= moment && start[at] + length[at] + near >= moment) return { kind: "span", at };
    }
    return { kind: "span", at: -1 };
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, from, to, moved: false, shift: event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
    box.classList.add("dragging");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) {
      const { kind, at } = hit(event.offsetX, event.offsetY);
      canvas.title = at < 0 ? "" : kind === "span" ? `${short(name[at])}, ${spanText(length[at])}` : `${t.causes[gapCause[at]].name}, ${spanText(gapLength[at])}`;
      return;
    }
    if (Math.abs(event.offsetX - drag.x) > 3) drag.moved = true;
    if (drag.moved && !drag.shift) {
      const by = ((drag.x - event.offsetX) / (wide - gutter())) * (drag.to - drag.from);
      view(drag.from + by, drag.to + by);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    const was = drag;
    drag = null;
    box.classList.remove("dragging");
    if (!was) return;
    if (was.moved && was.shift) view(...[atX(was.x), atX(event.offsetX)].sort((a, b) => a - b));
    else if (!was.moved) { const { kind, at } = hit(event.offsetX, event.offsetY); choose(kind, at); }
  });
  canvas.addEventListener("pointercancel", () => { drag = null; box.classList.remove("dragging"); });
  canvas.addEventListener("dblclick", () => view(0, t.length));
  box.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, atX(event.offsetX));
    else if (event.shiftKey) move((event.deltaX || event.deltaY) > 0 ? 0.1 : -0.1);
    else return;
    event.preventDefault();
  }, { passive: false });

  function nextGap() {
    if (!numGaps) return;
    gapAt = (gapAt + 1) % numGaps;
    const i = gapOrder[gapAt];
    goTo(gapStart[i], gapLength[i]);
    choose("gap", i);
  }

  const search = byId("timeline-search"), status = byId("timeline-found");
  function find(text) {
    const wanted = text.trim().toLowerCase();
    found = [];
    foundAt = -1;
    matches = coveredMatch = null;
    if (wanted) {
      matches = Uint8Array.from(t.names, (n) => (n.join(" ").toLowerCase().includes(wanted) ? 1 : 0));
      coveredMatch = new Float64Array(num + 1);
      for (let i = 0; i < num; i++) {
        coveredMatch[i + 1] = coveredMatch[i] + (matches[name[i]] ? length[i] : 0);
        if (matches[name[i]]) found.push(i);
      }
      found.sort((a, b) => start[a] - start[b]);
    }
    status.textContent = wanted ? found.length ? tr("{num} found, Enter goes on", { num: found.length }) : tr("{num} found", { num: 0 }) : "";
    draw();
  }
  function nextFound(by) {
    if (!found.length) return;
    foundAt = (foundAt + by + found.length) % found.length;
    const i = found[foundAt];
    goTo(start[i], length[i], 4);
    choose("span", i);
    status.textContent = tr("{num} of {total}", { num: foundAt + 1, total: found.length });
  }
  search.addEventListener("input", () => find(search.value));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") nextFound(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { search.value = ""; find(""); box.focus(); }
  });

  function beside(by) {
    const at = chosen && chosen.kind === "span" ? chosen.at + by : by > 0 ? after(0, from) : first[1] - 1;
    if (at < 0 || at >= num || (chosen && chosen.kind === "span" && rowOf[at] !== rowOf[chosen.at])) return;
    choose("span", at);
    if (start[at] < from || start[at] + length[at] > to) goTo(start[at], length[at], 8);
  }
  function otherRow(by) {
    if (!chosen || chosen.kind !== "span") return beside(1);
    const row = rowOf[chosen.at] + by;
    if (row < 0 || row >= t.rows.length || !t.rows[row]) return;
    choose("span", Math.max(after(row, start[chosen.at] + length[chosen.at] / 2) - 1, first[row]));
  }
  const keys = {
    w: () => zoom(0.6), s: () => zoom(1 / 0.6), a: () => move(-0.2), d: () => move(0.2), "0": () => view(0, t.length),
    "+": () => zoom(0.6), "-": () => zoom(1 / 0.6), n: nextGap, "/": () => search.focus(),
    ArrowLeft: () => beside(-1), ArrowRight: () => beside(1), ArrowUp: () => otherRow(-1), ArrowDown: () => otherRow(1),
    Enter: () => chosen && chosen.kind === "span" && goTo(start[chosen.at], length[chosen.at], 1), Escape: () => choose("span", -1),
  };
  // Letters work anywhere on the page but in a field and in another chart; arrows, Enter and Escape only here.
  document.addEventListener("keydown", (event) => {
    const letter = event.key.length === 1, inside = box.contains(event.target);
    const action = keys[letter ? event.key.toLowerCase() : event.key];
    if (!action || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (!inside && (!letter || event.target.closest("input, select, textarea, .flame"))) return;
    event.preventDefault();
    if (!inside) box.scrollIntoView({ block: "nearest" });
    action();
  });
  byId("timeline-gap").addEventListener("click", nextGap);
  byId("timeline-in").addEventListener("click", () => zoom(0.5));
  byId("timeline-out").addEventListener("click", () => zoom(2));
  byId("timeline-all").addEventListener("click", () => view(0, t.length));

  const chips = byId("chips");
  t.causes.forEach((cause, index) => {
    const button = document.createElement("button"), mark = document.createElement("i");
    button.type = "button";
    mark.style.background = cause.colour;
    let at = -1;
    button.append(mark, cause.name);
    button.title = `${tr("to the next largest gap")}${cause.label ? `: ${cause.label}` : ""}`;
    button.addEventListener("click", () => {
      const mine = gapOrder.filter((i) => gapCause[i] === index);
      at = (at + 1) % mine.length;
      goTo(gapStart[mine[at]], gapLength[mine[at]]);
      choose("gap", mine[at]);
    });
    chips.append(button);
  });
  for (const button of document.querySelectorAll("button.show")) {
    button.addEventListener("click", () => goTo(Number(button.dataset.from) / t.unit, (Number(button.dataset.to) - Number(button.dataset.from)) / t.unit));
  }

  function trace() {
    const us = (units) => (units * t.unit) / 1000, events = [];
    t.lanes.forEach((lane, i) => events.push({ ph: "M", name: "thread_name", pid: lane.device ? 1 : 0, tid: i, args: { name: lane.label } }));
    for (let i = 0; i < num; i++) {
      const tid = laneOfRow[rowOf[i]], pid = t.lanes[tid].device ? 1 : 0;
      events.push({ ph: "X", name: full(name[i]), cat: t.categories[category[i]].name, pid, tid, ts: us(start[i]), dur: us(length[i]) });
      if (launch[i] < 0) continue;
      const call = launch[i], thread = laneOfRow[rowOf[call]];
      events.push({ ph: "s", id: i, name: "launch", cat: "launch", pid: 0, tid: thread, ts: us(start[call]) });
      events.push({ ph: "f", bp: "e", id: i, name: "launch", cat: "launch", pid, tid, ts: us(start[i]) });
    }
    return JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" });
  }
  const saving = byId("save-trace");
  if (saving) saving.addEventListener("click", () => save(`step-${t.step}.json`, trace(), "application/json"));

  addEventListener("beforeprint", () => { printing = true; render(); });
  addEventListener("afterprint", () => { printing = false; render(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(draw).observe(box);
  render();
  box.dataset.spans = num;
};
