"use strict";
(() => {
  const data = window.pageData, tr = window.tr;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  const time = (ms) => ms >= 1000 ? `${(ms / 1000).toPrecision(3)} s` : ms >= 1 ? `${ms.toPrecision(3)} ms` : `${(ms * 1000).toPrecision(3)} µs`;
  const said = (text) => { const place = byId("said"); if (place) place.textContent = text; };

  async function copyText(text, node) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = node || document.body.appendChild(Object.assign(document.createElement("pre"), { textContent: text, className: "visually-hidden" }));
      const range = document.createRange();
      range.selectNodeContents(area);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      const done = document.execCommand("copy");
      if (!node) area.remove();
      return done;
    }
  }

  function confirmOn(button, done) {
    const before = button.dataset.label || (button.dataset.label = button.textContent);
    button.textContent = done ? tr("Copied") : tr("Selected");
    said(button.textContent);
    setTimeout(() => { button.textContent = before; }, 1600);
  }

  function save(name, text, type) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    said(tr("Saved {name}", { name }));
  }

  for (const button of all("button.copy")) {
    const code = button.closest("figure").querySelector("code");
    button.addEventListener("click", async () => confirmOn(button, await copyText(code.textContent, code)));
  }
  const on = (id, action) => { const button = byId(id); if (button) button.addEventListener("click", () => action(button)); };
  on("copy-markdown", async (button) => confirmOn(button, await copyText(data.markdown)));
  on("save-json", () => save("diagnosis.json", JSON.stringify(data.diagnosis, null, 2), "application/json"));

  // Tables: a heading sorts by the numbers behind the cells, or by their text.
  function value(row, column) {
    const cell = row.cells[column], number = cell.dataset.value !== undefined ? Number(cell.dataset.value) : parseFloat(cell.textContent.replace(/[<>, ]/g, ""));
    return Number.isNaN(number) ? cell.textContent : number;
  }

  function compare(a, b) {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
    return typeof a === "number" ? 1 : -1;
  }

  function sort(table, heading, column) {
    const first = heading.classList.contains("number") ? "descending" : "ascending";
    const other = first === "descending" ? "ascending" : "descending";
    const order = heading.getAttribute("aria-sort") === first ? other : first;
    for (const th of all("thead th", table)) th.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1, body = table.tBodies[0];
    body.append(...[...body.rows].sort((a, b) => sign * compare(value(a, column), value(b, column))));
  }

  for (const table of all("table.sortable")) {
    all("thead th", table).forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent;
      button.addEventListener("click", () => sort(table, heading, column));
      heading.replaceChildren(button);
    });
  }

  for (const input of all("input.filter")) {
    const rows = [...byId(input.dataset.table).tBodies[0].rows], found = input.closest("p").querySelector("[role=status]");
    const texts = rows.map((row) => (row.textContent + " " + (row.cells[0].title || "")).toLowerCase());
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      let shown = 0;
      rows.forEach((row, i) => { row.hidden = !texts[i].includes(wanted); shown += row.hidden ? 0 : 1; });
      found.textContent = wanted ? tr("{num} of {total}", { num: shown, total: rows.length }) : "";
    });
  }

  // What if: every combination of the changes was replayed when the page was made.
  const boxes = all("input.change");
  if (boxes.length && data.combinations) {
    const bars = all(".waterfall tbody tr"), { now, steps } = data.combinations;
    const span = (low, high) => tr("{low} to {high}", { low: time(low), high: time(high) });
    const update = () => {
      let mask = 0;
      boxes.forEach((box, i) => {
        const row = bars[i + 1];
        row.classList.toggle("out", !box.checked);
        if (box.checked) mask |= 1 << i;
        const [step, low, high] = steps[mask];
        row.querySelector(".fall i").style.width = `${(100 * step) / now}%`; // null, of a wide range: none
        const range = row.querySelector(".fall b");
        if (range) Object.assign(range.style, { left: `${(100 * low) / now}%`, width: `${(100 * (high - low)) / now}%` });
        row.cells[2].textContent = step === null ? "–" : time(step);
        row.cells[3].textContent = time(low) === time(high) ? "" : span(low, high);
      });
      const [step, low, high] = steps[mask], then = step === null ? span(low, high) : `${time(step)} (${(now / step).toFixed(1)} ×)`;
      byId("combined").textContent = mask ? `${time(now)} → ${then}` : tr("No change: {step}", { step: time(now) });
    };
    boxes.forEach((box) => box.addEventListener("change", update));
    update();
  }

  // A link into a folded part opens it.
  function reveal() {
    const target = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (target) target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  reveal();

  if (data.timeline && window.drawTimeline) window.drawTimeline(data.timeline, { time, save });
  if (data.flames && window.drawFlames) window.drawFlames(data.flames, { time });
})();
