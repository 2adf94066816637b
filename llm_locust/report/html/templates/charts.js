(() => {
  "use strict";
  const { run, charts } = JSON.parse(document.getElementById("data").textContent);
  const byId = new Map(charts.map((chart) => [chart.id, chart]));
  const plots = new Map([...document.querySelectorAll("[data-chart]")].map((el) => [el.dataset.chart, el]));
  const root = document.documentElement;
  const drawn = new Set();
  const log = new Set(charts.filter((chart) => chart.y.log).map((chart) => chart.id));
  const PRINT_WIDTH = 680;

  // The style sheet's colours as they are now: light-dark() is resolved on an element only.
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  function colour(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  const column = (chart, series, head) => chart.data[series.table].columns[head];

  // plotly reads tags and entities in its texts: what came from a server or a user shall be neither.
  const plain = (value) =>
    typeof value === "string"
      ? value.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;")
      : value;
  const texts = (chart, series, head) => column(chart, series, head).map(plain);

  // plotly draws a lone cell half a unit to each side, which on a log axis may be below zero: its edges are given.
  const places = (values, isLog) => (isLog && values.length === 1 ? [0.9 * values[0], 1.1 * values[0]] : values);

  function heatTrace(chart, series) {
    const columns = chart.data[series.table].columns;
    const cells = Object.values(columns).slice(1);
    const { levels, title, log: decades } = chart.heat;
    const shown = decades ? cells.map((row) => row.map((n) => (n > 0 ? Math.log10(n) : null))) : cells;
    const most = shown.reduce((a, row) => row.reduce((b, v) => (v > b ? v : b), a), 0);
    const ticks = Array.from({ length: Math.floor(most) + 1 }, (_, i) => i);
    const scale = decades ? { zmin: 0, zmax: Math.max(most, 1) } : { zmin: 0, zmax: 100 };
    const bar = decades ? { tickvals: ticks, ticktext: ticks.map((t) => (10 ** t).toLocaleString("en")) } : {};
    return {
      type: "heatmap", x: places(column(chart, series, series.x), chart.x.log), y: places(levels, chart.y.log),
      z: shown, customdata: cells, ...scale,
      colorscale: [[0, colour("heat-low")], [0.5, colour("heat-mid")], [1, colour("heat-high")]],
      hovertemplate: `${plain(chart.x.title)} %{x}<br>${plain(chart.y.title)} %{y}<br>${plain(title)} %{customdata}<extra></extra>`,
      colorbar: { thickness: 10, outlinewidth: 0, title: { text: plain(title), side: "right" }, ...bar },
    };
  }

  function trace(chart, series) {
    if (series.kind === "heat") return heatTrace(chart, series);
    const ink = colour(series.colour);
    const [x, y] = [series.x, series.y].map((head) => texts(chart, series, head));
    const common = { name: plain(series.name), x, y };
    switch (series.kind) {
      case "points":
        return { ...common, type: "scatter", mode: "markers", marker: { color: ink, size: 4, opacity: 0.35 } };
      case "marks":
        return {
          ...common, type: "scatter", mode: "lines+markers",
          marker: { color: ink, size: 6, symbol: "square" }, line: { color: ink, width: 1 },
        };
      case "stacked":
        return { ...common, type: "bar", marker: { color: ink } };
      case "timeline":
        return { ...common, type: "bar", orientation: "h", marker: { color: ink } };
      default: {
        const few = common.x.length < 40 && series.kind === "line" && common.x.length > 2;
        const dash = ["dashed", "bound"].includes(series.kind) ? "dash" : "solid";
        return {
          ...common, type: "scatter", mode: few ? "lines+markers" : "lines", connectgaps: false,
          showlegend: series.kind !== "bound",
          line: { color: ink, width: 1.6, dash }, marker: { color: ink, size: 4 },
        };
      }
    }
  }

  // How a log axis is numbered: as plotly has it below a decade, at 1 2 5 while there is room, then by powers.
  function logTicks(values, isNarrow) {
    const known = values.filter((v) => v > 0);
    const decades = Math.log10(Math.max(...known) / Math.min(...known));
    if (!(decades > 0.9)) return {};
    return { dtick: decades <= (isNarrow ? 1.5 : 3) ? "D2" : 1 };
  }

  function axis(spec, isLog, values, isNarrow, more) {
    const range = spec.most ? { range: [0, spec.most * 1.02] } : { rangemode: isLog ? "normal" : "tozero" };
    return {
      title: { text: plain(spec.title), standoff: 6 }, type: isLog ? "log" : undefined, gridcolor: colour("grid"),
      linecolor: colour("rule"), zeroline: false, tickformat: isLog ? "~g" : ",~g", automargin: true,
      ...(isLog ? { exponentformat: "none", ...logTicks(values(), isNarrow) } : {}), ...range, ...more,
    };
  }

  const along = (chart, xy) => [
    ...chart.series.flatMap((series) => column(chart, series, series[xy])),
    ...chart.marks.filter((mark) => mark.axis === xy).map((mark) => mark.at),
  ];

  function shapes(chart) {
    const bands = chart.bands.map(([x0, x1]) => ({
      type: "rect", xref: "x", yref: "paper", x0, x1, y0: 0, y1: 1,
      fillcolor: colour("outside"), line: { width: 0 }, layer: chart.heat ? "above" : "below",
    }));
    const marks = chart.marks.map(({ axis: across, at }) => ({
      type: "line", line: { color: colour("bad"), width: 1.2, dash: "dash" },
      ...(across === "x"
        ? { xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1 }
        : { xref: "paper", yref: "y", x0: 0, x1: 1, y0: at, y1: at }),
    }));
    return [...bands, ...marks];
  }

  function annotations(chart) {
    return chart.marks.map(({ axis: across, at, text }, i) => ({
      text: plain(text), showarrow: false, font: { color: colour("bad"), size: 11 }, bgcolor: colour("page"), opacity: 0.85,
      ...(across === "x"
        ? {
            xref: "x", yref: "paper", x: chart.x.log ? Math.log10(at) : at, y: 1 - 0.09 * i,
            xanchor: "left", yanchor: "top", textangle: 0,
          }
        : {
            xref: "paper", yref: "y", x: 1, y: log.has(chart.id) ? Math.log10(at) : at,
            xanchor: "right", yanchor: "bottom",
          }),
    }));
  }

  function layout(chart) {
    const kinds = new Set(chart.series.map((series) => series.kind));
    const bars = kinds.has("stacked") || kinds.has("timeline");
    const named = chart.series.filter((series) => series.kind !== "bound").length > 1 || bars;
    const rows = kinds.has("timeline")
      ? { autorange: "reversed", type: "category", tickformat: undefined, dtick: 1, rangemode: undefined }
      : {};
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", separators: ".,",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("text") },
      margin: { l: 48, r: 12, t: named ? 30 : 10, b: 40 }, barmode: bars ? "stack" : undefined, bargap: 0.15,
      showlegend: named && !chart.heat,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal", font: { size: 12 } },
      hovermode: chart.heat || kinds.has("points") ? "closest" : kinds.has("timeline") ? "y unified" : "x unified",
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("rule"), font: { color: colour("text") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("faint"), activecolor: colour("text") },
      xaxis: axis(chart.x, chart.x.log, () => along(chart, "x"), innerWidth < 600, chart.heat || kinds.has("points") ? { rangemode: "normal" } : {}),
      yaxis: axis(chart.y, log.has(chart.id), () => (chart.heat ? chart.heat.levels : along(chart, "y")), false, rows),
      shapes: shapes(chart), annotations: annotations(chart),
    };
  }

  const config = {
    responsive: true, displaylogo: false, showSendToCloud: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };

  // plotly is in the page as gzip in base64. It runs as an inline script, whose hash the page's policy has.
  async function unpack() {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const script = document.createElement("script");
    const text = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    script.textContent = await new Response(text).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("plotly.js did not start");
  }

  function draw(id, width) {
    if (!window.Plotly) return;
    const chart = byId.get(id);
    const element = plots.get(id);
    const rows = chart.series.filter((series) => series.kind === "timeline");
    if (rows.length) element.style.height = `${90 + 20 * column(chart, rows[0], rows[0].y).length}px`;
    const look = layout(chart);
    if (width) Object.assign(look, { width, height: element.clientHeight, autosize: false });
    drawn.add(id);
    Plotly.react(element, chart.series.map((series) => trace(chart, series)), look, config);
  }

  const redraw = () => drawn.forEach((id) => draw(id));

  function csvCell(value) {
    if (value === null || typeof value === "number") return value ?? "";
    // A text that a spreadsheet would run as a formula stays a text.
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function csv(chart, table) {
    const { columns } = chart.data[table];
    const lists = Object.values(columns);
    const rows = lists[0].map((_, i) => lists.map((list) => csvCell(list[i])).join(","));
    return [Object.keys(columns).map(csvCell).join(","), ...rows].join("\n") + "\n";
  }

  function save(chart, table) {
    const name = chart.data.length > 1 ? `${chart.id}-${chart.data[table].name}` : chart.id;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(chart, table)], { type: "text/csv;charset=utf-8" }));
    link.download = `${run}-${name}.csv`.replace(/[^\w.-]+/g, "_");
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.csv) save(byId.get(button.dataset.csv), Number(button.dataset.table));
    if (button.dataset.log) {
      const id = button.dataset.log;
      if (!log.delete(id)) log.add(id);
      button.setAttribute("aria-pressed", String(log.has(id)));
      draw(id);
    }
    if (button.id === "theme") {
      const isDark = root.dataset.theme ? root.dataset.theme === "dark" : darkSystem.matches;
      root.dataset.theme = isDark ? "light" : "dark";
      redraw();
    }
  });

  const darkSystem = matchMedia("(prefers-color-scheme: dark)");
  darkSystem.addEventListener("change", redraw);

  // On paper all charts are there, in the light colours that the style sheet has for it.
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme ?? "";
    root.dataset.theme = "light";
    charts.forEach((chart) => draw(chart.id, PRINT_WIDTH));
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    // plotly would keep the width of the paper: they are drawn anew as they come near.
    drawn.clear();
    plots.forEach((element) => {
      window.Plotly?.purge(element);
      near.unobserve(element);
      near.observe(element);
    });
  });

  // Drawn when they come near: a page of twenty charts opens as fast as one of two.
  const near = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        near.unobserve(target);
        draw(target.dataset.chart);
      }
    },
    { rootMargin: "800px" },
  );

  function sayWhyNot(error) {
    const line = document.getElementById("no-charts");
    line.textContent = window.DecompressionStream
      ? `The charts could not be drawn: ${error}. All tables and the CSV of each chart are here without them.`
      : "Charts need a newer browser: Chrome or Edge 80, Firefox 113, Safari 16.4. All tables and the CSV of each chart are here without them.";
    line.hidden = false;
    document.querySelector("main").prepend(line);
  }

  if (plots.size)
    unpack().then(() => plots.forEach((element) => near.observe(element)), sayWhyNot);
})();
