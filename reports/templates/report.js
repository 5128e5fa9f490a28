"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const ROW = 22, DEPTH = 110, GRID = "rgba(128, 136, 148, 0.22)", TEXT = "#808894";
  const TOUCH = matchMedia("(pointer: coarse)").matches;
  const LANE_WIDTH = () => (innerWidth < 640 ? 12 : 24);
  const hover = { bgcolor: "#20262e", bordercolor: "#20262e", font: { color: "#ffffff", size: 12 } };
  const config = {
    responsive: true, displaylogo: false, doubleClick: "reset",
    modeBarButtons: [["zoomIn2d", "zoomOut2d", "pan2d", "zoom2d", "resetScale2d", "toImage"]],
  };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: TEXT, size: 12, family: "inherit" },
    hoverlabel: hover, hovermode: "closest", modebar: { bgcolor: "rgba(0,0,0,0)", color: "#98a1ae", activecolor: "#5b7fa6" },
  };
  const time = (ms) => ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : ms >= 1 ? `${ms.toFixed(2)} ms` : `${(ms * 1000).toFixed(1)} µs`;

  function bars(items, colour, name, names, row, width) {
    return {
      type: "bar", orientation: "h", yaxis: "y2", name, showlegend: false, width,
      base: items.map((item) => item[0]), x: items.map((item) => item[1]), y: row,
      // Not quite opaque: Plotly then rounds bars narrower than a pixel to nothing instead of widening each to a full
      // pixel, so that thousands of short ones show in proportion to their time.
      marker: { color: colour + "fc", line: { width: 0 } },
      customdata: items.map((item) => [names[item[2]][0], time(item[1]), time(item[0]), item[2]]),
      hovertemplate: `<b>${name}</b> %{customdata[1]}, from %{customdata[2]}<br>%{customdata[0]}<extra></extra>`,
    };
  }

  function timelineTraces(t) {
    const device = t.lanes.filter((lane) => lane.device);
    const rows = Math.max(1, device.reduce((sum, lane) => sum + lane.rows, 0));
    const gaps = t.gaps.map((gap) =>
      bars(gap.items, gap.colour, gap.cause, t.names, gap.items.map(() => (rows - 1) / 2), rows - 0.1));
    const spans = t.spans.map((group) =>
      bars(group.items.map((item) => item.slice(1)), group.colour, group.category, t.names, group.items.map((item) => item[0]), 0.82));
    const depth = {
      type: "scatter", mode: "lines", x: t.depth.x.concat(t.step_ms), y: t.depth.y.concat(t.depth.y.slice(-1)), yaxis: "y",
      line: { shape: "hv", width: 1.2, color: "#5b7fa6" }, fill: "tozeroy", fillcolor: "rgba(91,127,166,0.22)", showlegend: false,
      hovertemplate: "queue depth <b>%{y}</b> at %{x:.3f} ms<extra></extra>",
    };
    return (t.depth.x.length ? [depth] : []).concat(gaps, spans);
  }

  function timelineLayout(t) {
    const count = Math.max(1, ...t.lanes.map((lane) => lane.row + lane.rows));
    const depth = t.depth.x.length ? DEPTH : 0, space = depth ? 26 : 0, below = 46, above = 30;
    const lanes = count * ROW + 12, inner = depth + space + lanes;
    const label = (text) => text.length > LANE_WIDTH() ? "…" + text.slice(1 - LANE_WIDTH()) : text;
    return Object.assign({}, base, {
      height: inner + below + above, margin: { l: innerWidth < 640 ? 84 : 132, r: 14, t: above, b: below }, barmode: "overlay",
      dragmode: TOUCH ? false : "zoom",
      xaxis: { range: [0, t.step_ms], anchor: "y2", title: { text: "ms from the start of the step", standoff: 8 }, gridcolor: GRID, zeroline: false },
      yaxis: {
        domain: [(lanes + space) / inner, 1], fixedrange: true, rangemode: "tozero", nticks: 4, gridcolor: GRID, zeroline: false,
        title: { text: "queue depth", font: { size: 12 } }, visible: depth > 0,
      },
      yaxis2: {
        domain: [0, lanes / inner], fixedrange: true, range: [count - 0.4, -0.6], showgrid: false, zeroline: false,
        tickvals: t.lanes.map((lane) => lane.row + (lane.rows - 1) / 2), ticktext: t.lanes.map((lane) => label(lane.label)),
      },
      shapes: t.lanes.slice(1).map((lane) => ({
        type: "line", xref: "paper", x0: 0, x1: 1, yref: "y2", y0: lane.row - 0.5, y1: lane.row - 0.5, line: { color: GRID, width: 1 },
      })),
    });
  }

  function zoom(from, to) {
    const t = data.timeline, pad = Math.max((to - from) * 0.6, t.step_ms / 1e4);
    Plotly.relayout("timeline", { "xaxis.range": [Math.max(0, from - pad), Math.min(t.step_ms, to + pad)] });
    document.getElementById("timeline").scrollIntoView({ block: "nearest" });
  }

  function chip(text, colour, action) {
    const button = document.createElement("button");
    button.type = "button";
    if (colour) {
      const mark = document.createElement("i");
      mark.style.background = colour;
      button.append(mark);
    }
    button.append(text);
    button.addEventListener("click", action);
    document.getElementById("chips").append(button);
  }

  function chips(t) {
    if (!t.gaps.length) return;
    chip("whole step", "", () => Plotly.relayout("timeline", { "xaxis.range": [0, t.step_ms] }));
    for (const gap of t.gaps) {
      const largest = gap.items.reduce((a, b) => (b[1] > a[1] ? b : a));
      chip(gap.cause, gap.colour, () => zoom(largest[0], largest[0] + largest[1]));
    }
  }

  function detail(length, name) {
    const code = document.createElement("code");
    code.textContent = name;
    document.getElementById("detail").replaceChildren(length, code);
  }

  function drawTimeline(t) {
    const place = document.getElementById("timeline");
    Plotly.newPlot(place, timelineTraces(t), timelineLayout(t), config);
    chips(t);
    place.on("plotly_click", ({ points }) => {
      const custom = points[0].customdata;
      if (custom) detail(custom[1], t.names[custom[3]][1]);
    });
    for (const button of document.querySelectorAll("button.show")) {
      button.addEventListener("click", () => zoom(Number(button.dataset.from), Number(button.dataset.to)));
    }
  }

  function drawSteps(s) {
    const series = (name, { y, median }, colour) => ({
      type: "scatter", mode: y.length > 60 ? "lines" : "lines+markers", name: `${name}, median ${time(median)}`, y, x: y.map((_, i) => i + 1),
      line: { color: colour, width: 1.4 }, marker: { size: 5 }, hovertemplate: `${name} step %{x}: <b>%{y:.3f} ms</b><extra></extra>`,
    });
    const all = [];
    if (s.profiled) all.push(series("profiled", s.profiled, "#5b7fa6"));
    if (s.unprofiled) all.push(series("not profiled", s.unprofiled, "#2fa36b"));
    Plotly.newPlot("steps", all, Object.assign({}, base, {
      height: 240, margin: { l: 56, r: 14, t: 26, b: 42 }, showlegend: true, legend: { orientation: "h", x: 0, y: 1.16 },
      dragmode: TOUCH ? false : "zoom", xaxis: { title: { text: "step" }, gridcolor: GRID, zeroline: false },
      yaxis: { title: { text: "ms" }, rangemode: "tozero", gridcolor: GRID, zeroline: false },
    }), config);
  }

  function small(height, x, y, more) {
    return Object.assign({}, base, {
      height, margin: { l: 56, r: 14, t: 26, b: 42 }, showlegend: true, legend: { orientation: "h", x: 0, y: 1.16 },
      dragmode: TOUCH ? false : "zoom", xaxis: Object.assign({ gridcolor: GRID, zeroline: false }, x),
      yaxis: Object.assign({ gridcolor: GRID, zeroline: false }, y),
    }, more);
  }

  function drawTrials(t) {
    const row = (i) => -i, wide = innerWidth >= 640;
    const label = (text) => (wide || text.length <= 18 ? text : text.slice(0, 17) + "…");
    const measured = t.groups.map((group) => ({
      type: "scatter", mode: "markers", name: group.name, x: group.items.map((item) => item[1]), y: group.items.map((item) => row(item[0])),
      marker: { size: 9, color: group.colour },
      error_x: {
        type: "data", symmetric: false, arrayminus: group.items.map((item) => item[2]), array: group.items.map((item) => item[3]),
        color: group.colour, thickness: 2, width: 5,
      },
      customdata: group.items.map((item) => [t.names[item[0]], time(item[1] - item[2]), time(item[1] + item[3]), item[4].toFixed(2), time(item[1])]),
      hovertemplate: "<b>%{customdata[0]}</b><br>measured %{customdata[4]} (%{customdata[1]} to %{customdata[2]}), %{customdata[3]} ×<extra></extra>",
    }));
    const predicted = {
      type: "scatter", mode: "markers", name: "predicted", x: t.predicted.map((item) => item[1]), y: t.predicted.map((item) => row(item[0])),
      marker: { size: 12, symbol: "diamond-open", color: TEXT, line: { width: 1.6 } },
      customdata: t.predicted.map((item) => [t.names[item[0]], time(item[1])]),
      hovertemplate: "<b>%{customdata[0]}</b><br>predicted %{customdata[1]}<extra></extra>",
    };
    const edge = t.baseline * t.noise, vertical = { yref: "paper", y0: 0, y1: 1, layer: "below" };
    const layout = small(t.names.length * 30 + 96, { title: { text: "step, ms" } }, {
      tickvals: t.names.map((_, i) => row(i)), ticktext: t.names.map(label), range: [row(t.names.length - 1) - 0.6, 0.6], showgrid: false,
      fixedrange: true, automargin: true,
    }, {
      shapes: [
        Object.assign({ type: "rect", x0: t.baseline - edge, x1: t.baseline + edge, fillcolor: GRID, line: { width: 0 } }, vertical),
        Object.assign({ type: "line", x0: t.baseline, x1: t.baseline, line: { color: TEXT, width: 1.2, dash: "dot" } }, vertical),
      ],
      annotations: [{
        x: t.baseline, yref: "paper", y: 1, yanchor: "bottom", showarrow: false, text: `unchanged ${time(t.baseline)}`, font: { size: 12 },
      }],
      margin: { l: wide ? 56 : 20, r: 24, t: 52, b: 42 },
    });
    layout.legend = { orientation: "h", x: 0, xref: "paper", y: 1, yref: "container", yanchor: "top" };
    Plotly.newPlot("trials", (t.predicted.length ? [predicted] : []).concat(measured), layout, Object.assign({}, config, { displayModeBar: false }));
  }

  function drawLosses(l) {
    const apart = l.curves.some((curve) => curve.distance.some((d) => d !== null));
    const x = (y) => y.map((_, i) => i + 1);
    const unchanged = l.unchanged.map((y, i) => ({
      type: "scatter", mode: "lines", name: "without a change", legendgroup: "unchanged", showlegend: i === 0, x: x(y), y,
      line: { width: 6, color: "rgba(138,148,162,0.45)" }, hovertemplate: "without a change, step %{x}: <b>%{y:.6g}</b><extra></extra>",
    }));
    const curves = l.curves.map((curve) => ({
      type: "scatter", mode: "lines", name: `${curve.name}: ${curve.numerics}`, legendgroup: curve.name, x: x(curve.y), y: curve.y,
      line: { width: 1.5, color: curve.colour }, hovertemplate: `${curve.name}, step %{x}: <b>%{y:.6g}</b><extra></extra>`,
    }));
    const distances = l.curves.filter((curve) => curve.distance.some((d) => d !== null)).map((curve) => ({
      type: "scatter", mode: "lines", name: curve.name, legendgroup: curve.name, showlegend: false, yaxis: "y2", x: x(curve.distance),
      y: curve.distance, line: { width: 1.2, color: curve.colour },
      hovertemplate: `${curve.name}, step %{x}: <b>%{y:.1e}</b> apart<extra></extra>`,
    }));
    const layout = small(apart ? 500 : 340, { title: { text: "backward pass", standoff: 6 }, anchor: apart ? "y2" : "y" }, {
      title: { text: "loss" }, type: l.log ? "log" : "linear", domain: [apart ? 0.44 : 0, 1], automargin: true,
    }, { margin: { l: 64, r: 14, t: 16, b: 42 }, legend: { orientation: "h", x: 0, yanchor: "top" } });
    layout.legend.y = apart ? -0.16 : -0.24;
    if (apart) {
      layout.yaxis2 = {
        type: "log", domain: [0, 0.36], title: { text: "apart, relative" }, gridcolor: GRID, zeroline: false, exponentformat: "power",
        dtick: 2, automargin: true,
      };
    }
    Plotly.newPlot("losses", unchanged.concat(curves, distances), layout, config);
  }

  function drawMemory(m) {
    const line = (name, y, colour, more) => Object.assign({
      type: "scatter", mode: "lines", name, x: m.x, y, line: { shape: "hv", width: 1.4, color: colour },
      hovertemplate: `${name} <b>%{y:.3f} GB</b> at %{x:.3f} ms<extra></extra>`,
    }, more);
    const all = [line("allocated", m.allocated, "#5b7fa6", { fill: "tozeroy", fillcolor: "rgba(91,127,166,0.22)" })];
    if (m.reserved) all.push(line("reserved", m.reserved, "#d08a2e"));
    // The device's whole memory would press a small model flat: it is shown where at least a tenth of it is used.
    if (m.capacity && m.peak > m.capacity / 10) {
      all.push(line("the device has", [m.capacity, m.capacity], "#98a1ae", { x: [m.x[0], m.x[m.x.length - 1]] }));
    }
    Plotly.newPlot("memory", all, small(240, { title: { text: "ms from the first steady step" } }, { title: { text: "GB" }, rangemode: "tozero" }), config);
  }

  function drawRoofline(r) {
    const low = Math.min(1, ...r.x) / 2, high = Math.max(1000, ...r.x) * 2;
    const roofs = r.roofs.map(({ name, tflops }) => {
      const ridge = tflops * 1000 / r.gb_per_s;
      return {
        type: "scatter", mode: "lines", name, x: [low, ridge, Math.max(high, ridge)], y: [low * r.gb_per_s / 1000, tflops, tflops],
        line: { width: 1.2 }, hovertemplate: `${name}: ${tflops.toFixed(1)} TFLOP/s, ${r.gb_per_s.toFixed(0)} GB/s<extra></extra>`,
      };
    });
    const points = {
      type: "scatter", mode: "markers", name: "operators", showlegend: false, x: r.x, y: r.y,
      marker: { size: r.share.map((s) => 7 + 30 * Math.sqrt(Math.max(s, 0))), color: "#c7504a", opacity: 0.75, line: { width: 0 } },
      customdata: r.text.map((text, i) => [text, r.detail[i], (100 * r.share[i]).toFixed(1)]),
      hovertemplate: "<b>%{y:.2f} TFLOP/s</b>, %{x:.1f} FLOP per byte, %{customdata[2]} % of the step<br>%{customdata[1]}<br>%{customdata[0]}<extra></extra>",
    };
    const log = (text) => ({ type: "log", title: { text }, dtick: 1 });
    Plotly.newPlot("roofline", [...roofs, points], small(360, log("FLOP per byte of memory traffic"), log("TFLOP/s")), config);
  }

  function select(node) {
    const range = document.createRange();
    range.selectNodeContents(node);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  }

  async function copy(button) {
    const code = button.closest("figure").querySelector("code");
    let done = false;
    try {
      await navigator.clipboard.writeText(code.textContent);
      done = true;
    } catch {
      select(code);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  }

  for (const button of document.querySelectorAll("button.copy")) button.addEventListener("click", () => copy(button));
  if (data.timeline) drawTimeline(data.timeline);
  if (data.steps) drawSteps(data.steps);
  if (data.trials) drawTrials(data.trials);
  if (data.trials && data.trials.losses) drawLosses(data.trials.losses);
  if (data.memory) drawMemory(data.memory);
  if (data.roofline) drawRoofline(data.roofline);

  const PAPER = 690; // px, what an A4 or letter page leaves between its margins
  const charts = () => document.querySelectorAll(".chart.js-plotly-plot");
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details.examples").forEach((details) => { details.open = true; });
    charts().forEach((chart) => Plotly.relayout(chart, { width: PAPER, autosize: false }));
  });
  addEventListener("afterprint", () => charts().forEach((chart) => Plotly.relayout(chart, { width: null, autosize: true })));
})();
