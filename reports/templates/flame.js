"use strict";
// The flame graph of one cause: a box for each frame, as wide as its time, below the one that called it.
window.drawFlames = async (data, { time }) => {
  const tr = window.tr;
  const byId = (id) => document.getElementById(id);
  const box = byId("flame-boxes"), select = byId("flame-cause"), search = byId("flame-search");
  const detail = byId("flame-detail"), status = byId("flame-found"), note = byId("flame-note"), whole = byId("flame-all");
  const ROW = 21, NARROWEST = 1.5, NAMED = 34, TRUNK = 0.99, SHOWN_ABOVE = 2, MIN_TRUNK = 4;
  const column = await window.unpackColumns(data.packed);
  if (!column) {
    detail.textContent = tr("This browser is too old for the flame graph: it needs one of 2023 or later.");
    return;
  }
  const total = data.causes.reduce((sum, cause) => sum + cause.count, 0);
  const names = column(total), depths = column(total), lengths = column(total);
  const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

  // Of each cause: boxes in the order of their calls, box 0 is the cause itself.
  let at = 0;
  const graphs = data.causes.map((cause) => {
    const boxes = [{ text: cause.name, full: cause.name, kind: "cause", ms: cause.time, left: 0, used: 0, parent: null, children: [], depth: 0 }];
    const open = [boxes[0]];
    for (const end = at + cause.count; at < end; at++) {
      const [text, kind, full] = data.names[names[at]], depth = depths[at] + 1, parent = open[depth - 1];
      const made = { text, full: full || text, kind: data.kinds[kind], ms: (lengths[at] * data.unit) / 1e6, left: parent.left + parent.used, used: 0, parent, children: [], depth };
      parent.used += made.ms;
      parent.children.push(made);
      open[depth] = made;
      boxes.push(made);
    }
    return { cause, boxes };
  });

  let graph = null, top = null, current = null, wanted = "";
  const shown = new Map();

  function above(one) {
    const found = [];
    for (let up = one.parent; up; up = up.parent) found.unshift(up);
    return found;
  }
  function inner(one) {
    let found = one, own = null;
    while (found.children.length === 1 && found.children[0].ms >= TRUNK * found.ms) {
      found = found.children[0];
      if (found.kind === "own") own = found;
    }
    return found.depth < MIN_TRUNK ? one : own || found;
  }
  const matches = (one) => wanted && one.kind !== "cause" && one.full.toLowerCase().includes(wanted);

  function add(one, row, left, width, label = "") {
    const element = document.createElement("div");
    element.className = `frame ${one.kind}${matches(one) ? " match" : wanted ? " faint" : ""}${label ? " folded" : ""}`;
    element.style.cssText = `left:${(100 * left).toFixed(4)}%;width:${(100 * width).toFixed(4)}%;top:${row * ROW}px`;
    element.setAttribute("role", "treeitem");
    element.setAttribute("aria-level", one.depth + 1);
    const text = label || (one.kind === "cause" ? `${one.text} ${tr("{time} a step", { time: time(one.ms) })}` : one.text);
    const spoken = [text, one.full !== one.text && one.full, one.kind !== "cause" && time(one.ms), percent(one.ms / graph.cause.time)];
    element.setAttribute("aria-label", label || spoken.filter(Boolean).join(", ")); // begins with what is seen
    element.tabIndex = -1;
    if (width * box.clientWidth > NAMED) element.textContent = text;
    element.title = label || `${one.full}\n${tr("{time} a step, {share} of {cause}", { time: time(one.ms), share: percent(one.ms / graph.cause.time), cause: graph.cause.name })}`;
    element.addEventListener("click", () => zoom(one));
    element.addEventListener("focus", () => describe(one));
    box.append(element);
    if (!label) shown.set(one, element);
    return element;
  }

  function draw() {
    box.replaceChildren();
    shown.clear();
    const callers = above(top), folded = callers.slice(1, Math.max(callers.length - SHOWN_ABOVE, 1));
    let row = 0;
    callers.forEach((one, i) => {
      if (i > 0 && i <= folded.length) {
        if (i === 1) add({ ...graph.boxes[0], depth: 1, kind: "library" }, row++, 0, 1, tr("{num} callers above, show them", { num: folded.length }));
        return;
      }
      add(one, row++, 0, 1);
    });
    let deepest = row;
    const least = (NARROWEST / Math.max(box.clientWidth, 1)) * top.ms;
    const walk = (one, level) => {
      if (one.ms < least && one !== top) return;
      add(one, level, (one.left - top.left) / top.ms, Math.min(one.ms / top.ms, 1));
      deepest = Math.max(deepest, level);
      one.children.forEach((child) => walk(child, level + 1));
    };
    walk(top, row);
    box.style.height = `${(deepest + 1) * ROW}px`;
    if (!shown.has(current)) current = top;
    shown.get(current).tabIndex = 0;
    Object.assign(box.dataset, { cause: graph.cause.name, top: top.text, boxes: shown.size });
    whole.disabled = top === graph.boxes[0];
  }

  function describe(one) {
    if (shown.has(current)) shown.get(current).tabIndex = -1;
    current = one;
    if (shown.has(one)) shown.get(one).tabIndex = 0;
    const own = one.ms - one.used, code = document.createElement("code");
    code.textContent = one.full;
    const kinds = { own: tr("your code"), library: tr("library"), module: tr("module"), cause: tr("cause"), operator: tr("operator"), annotation: tr("annotation"), runtime: tr("driver call") };
    if (one.kind === "cause") {
      const rest = own > 0.005 * one.ms ? tr(", {time} of it in no recorded frame or operator", { time: time(own) }) : "";
      detail.replaceChildren(`${tr("{name}: {time} a step{rest}.", { name: one.text, time: time(one.ms), rest })} ${graph.cause.label}`);
      return;
    }
    detail.replaceChildren(`${tr("{name}, {time} a step ({share})", { name: kinds[one.kind] || one.kind, time: time(one.ms), share: percent(one.ms / graph.cause.time) })}${own > 0.005 * one.ms && one.children.length ? tr(", {time} in itself", { time: time(own) }) : ""}`, code);
  }
  function go(one) {
    if (!one) return;
    if (!shown.has(one)) { top = one.ms < top.ms && above(one).includes(top) ? one.parent : one; draw(); }
    shown.get(one).focus({ preventScroll: false });
  }
  function zoom(one) {
    top = one;
    current = one;
    draw();
    go(one);
  }
  function choose(index) {
    graph = graphs[index];
    top = inner(graph.boxes[0]);
    current = top;
    select.selectedIndex = index;
    note.textContent = graph.cause.note;
    find();
    describe(top);
  }

  function find() {
    wanted = search.value.trim().toLowerCase();
    const found = wanted ? graph.boxes.filter(matches) : [];
    const outer = found.filter((one) => !above(one).some(matches)).reduce((sum, one) => sum + one.ms, 0);
    status.textContent = wanted ? tr("{num} found", { num: found.length }) + (found.length ? `, ${time(outer)} (${percent(outer / graph.cause.time)})` : "") : "";
    draw();
    return found;
  }
  search.addEventListener("input", find);
  let next = -1;
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = ""; find(); go(current); }
    if (event.key !== "Enter") { next = -1; return; }
    const found = graph.boxes.filter(matches);
    if (!found.length) return;
    next = (next + 1) % found.length;
    top = found[next];
    draw();
    describe(top);
  });

  const beside = (by) => current.parent && current.parent.children[current.parent.children.indexOf(current) + by];
  const keys = {
    ArrowDown: () => go(current.children[0]), ArrowUp: () => go(current.parent), ArrowRight: () => go(beside(1)), ArrowLeft: () => go(beside(-1)),
    Enter: () => zoom(current), " ": () => zoom(current), "0": () => zoom(graph.boxes[0]), Escape: () => zoom(graph.boxes[0]), Home: () => go(graph.boxes[0]), "/": () => search.focus(),
  };
  box.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  });
  whole.addEventListener("click", () => { top = graph.boxes[0]; draw(); describe(top); });
  graphs.forEach(({ cause }) => select.append(new Option(`${cause.name} · ${tr("{time} a step", { time: time(cause.time) })}`)));
  select.addEventListener("change", () => choose(select.selectedIndex));
  for (const link of document.querySelectorAll("a.to-flame")) {
    const index = data.causes.findIndex((cause) => cause.name === link.dataset.cause);
    link.addEventListener("click", () => choose(index));
  }
  choose(0);
  let width = box.clientWidth;
  new ResizeObserver(() => { if (box.clientWidth !== width) { width = box.clientWidth; draw(); } }).observe(box);
};
