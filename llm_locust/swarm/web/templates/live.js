(() => {
  "use strict";
  const root = document.documentElement;
  const el = (id) => document.getElementById(id);

  // -- numbers and text ------------------------------------------------------------------------------

  // Plotly reads tags and entities in its texts: what came from a server or a user shall be neither.
  const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const dash = "–";
  const clock = (date) => date.toLocaleTimeString("en-GB");

  function figure(value, digits = 3) {
    if (value === null || value === undefined) return dash;
    if (Math.abs(value) >= 10 ** digits) return Math.round(value).toLocaleString("en");
    return value === 0 ? "0" : Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });
  }

  function share(value) {
    if (value === null || value === undefined) return dash;
    const percent = value * 100;
    return percent > 99.9 && percent < 100 ? ">99.9 %" : `${figure(percent)} %`;
  }

  function lasting(seconds) {
    const s = Math.floor(seconds);
    const [h, m] = [Math.floor(s / 3600), Math.floor(s / 60) % 60];
    return `${h ? `${h}:${String(m).padStart(2, "0")}` : m}:${String(s % 60).padStart(2, "0")}`;
  }

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // -- the charts ------------------------------------------------------------------------------------

  const percentiles = (metric) => ["p50", "p95", "p99"].map((p) => ({ column: `${metric}_${p}_ms`, name: p, colour: p }));
  const OUTCOME_COLOURS = ["c2", "c4", "c5", "c6", "c3", "c1"];
  const line = (column, name, colour, more) => ({ column, name, colour, ...more });

  const CATALOGUE = JSON.parse(el("charts").dataset.catalogue);
  const CHARTS = [
    ...CATALOGUE.latencies.filter(({ chart }) => chart)
      .map(({ key, label, unit }) => ({ id: key, title: `${label}, ${unit}`, lines: () => percentiles(key) })),
    {
      id: "tokens", title: "Tokens per second, counted when their request ends",
      lines: () => [
        line("output_tokens_per_s", "output", "c1"),
        line("good_output_tokens_per_s", "output of good requests", "c3"),
        line("input_tokens_per_s", "input", "c2"),
      ],
    },
    { id: "inputs", title: "Inputs per second, counted when their request ends", optional: true, lines: () => [line("inputs_per_s", "inputs", "c1")] },
    { id: "images", title: "Images per second, counted when their request ends", optional: true, lines: () => [line("images_per_s", "images", "c4")] },
    {
      id: "agents-speed", title: "Agents: output speed that three quarters of the turns exceed, tokens/s", optional: true,
      lines: () => [line("output_tokens_per_s_p25", "output speed, p25", "c1")],
    },
    {
      id: "agents-jobs", title: "Agents: jobs per minute, counted when they end", optional: true,
      lines: () => [line("jobs_per_min", "finished", "c3"), line("jobs_failed_per_min", "failed", "c4")],
    },
    {
      id: "goodput", title: "Goodput and attainment, %", scale: 100, range: [0, 103],
      lines: (columns) => [
        line("goodput", "goodput", "p50"),
        ...starting(columns, "attainment_").map((column, i) =>
          line(column, `${column.slice("attainment_".length)} held`, ["c1", "c2", "c3", "c4", "c5"][i % 5], { dash: "dot" })),
      ],
    },
    {
      id: "concurrency", title: "Concurrency and users",
      lines: () => [
        line("concurrency", "requests in flight", "c1"),
        line("concurrency_max", "peak", "c6", { dash: "dot" }),
        line("users", "users", "c2", { shape: "hv" }),
      ],
    },
    {
      id: "delay", title: "Schedule delay and client lag, ms",
      lines: () => [...percentiles("schedule_delay"), line("client_lag_p99_ms", "client lag p99", "c4", { dash: "dot" })],
    },
    {
      id: "outcomes", title: "Requests that ended, per second", stacked: true,
      lines: (columns) => [
        line("ok_per_s", "ok", "c3"),
        ...columns.filter((c) => c.endsWith("_per_s") && CATALOGUE.outcomes.includes(c.slice(0, -6)))
          .map((column, i) => line(column, column.slice(0, -6).replaceAll("_", " "), OUTCOME_COLOURS[i % 6])),
      ],
    },
    {
      id: "workers", title: "Workers: highest CPU and event loop delay",
      lines: () => [
        line("cpu_percent_max", "CPU, % of a core", "c2"),
        line("hub_lag_ms_max", "event loop delay, p99 ms", "c4"),
        line("workers", "workers", "c1", { shape: "hv" }),
      ],
    },
  ];
  // The servers' own metrics: a line for each server, or the extremes and the median of many.
  const SERVER_CHARTS = Object.entries(CATALOGUE.servers).map(([figure, title]) => ({
    id: `server-${figure.replaceAll("_", "-")}`, title, server: true, ...(title.endsWith("%") && { scale: 100, range: [0, 103] }),
    lines: (columns) => starting(columns, `server:${figure}:`).map((column, i) =>
      line(column, column.slice(`server:${figure}:`.length), ["c1", "c2", "c3", "c4", "c5", "c6", "p50", "faint"][i % 8])),
  }));
  const starting = (columns, start) => columns.filter((column) => column.startsWith(start));
  const BAD = new Set(["lost", "missed", "silent"]);

  for (const { id, title, server, optional } of [...CHARTS, ...SERVER_CHARTS]) {
    const plot = element("div", { className: "plot", id: `plot-${id}` });
    plot.dataset.chart = id;
    const figure = element("figure", { className: "chart", hidden: Boolean(server || optional) }, element("h3", { textContent: title }), plot);
    el(server ? "servers" : "charts").append(figure);
  }

  // Two charts of the stages over their load; the figures are the report's.
  const LOAD_CHARTS = [
    {
      id: "stage-latency", title: "Latency over load, ms", lines: [
        line("ttft_p50_ms", "TTFT p50", "c1"), line("ttft_p99_ms", "TTFT p99", "c2"),
        line("tpot_p50_ms", "TPOT p50", "c3"), line("tpot_p99_ms", "TPOT p99", "c4"),
        line("e2el_p50_ms", "E2EL p50", "c5"), line("e2el_p99_ms", "E2EL p99", "c6"),
      ],
    },
    {
      id: "stage-rates", title: "Throughput and goodput over load", lines: [
        line("output_tokens_per_s", "output tokens/s", "c1"), line("inputs_per_s", "inputs/s", "c2"), line("goodput", "goodput, % (right)", "c3", { right: true, scale: 100 }),
      ],
    },
  ];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"]; // of a pair's lines
  for (const { id, title } of LOAD_CHARTS) {
    const plot = element("div", { className: "plot", id: `plot-${id}` });
    plot.dataset.chart = id;
    el("stages-charts").append(element("figure", { className: "chart", hidden: true }, element("h3", { textContent: title }), plot));
  }

  const probe = document.body.appendChild(element("span", { hidden: true }));
  function colour(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  // -- what the master has told ----------------------------------------------------------------------

  const state = { span: "5m", token: "", data: null, now: null, paused: false, failing: null, timer: 0, asking: null };

  function take(answer) {
    if (answer.full || !state.data) {
      state.data = { at: answer.at_s, columns: answer.columns, marks: answer.marks ?? [] };
    } else {
      const { at, columns } = state.data;
      const keep = at.findIndex((s) => s >= answer.from_s);
      const gone = keep < 0 ? at.length : keep;
      at.splice(0, gone);
      for (const column of Object.values(columns)) column.splice(0, gone);
      answer.at_s.forEach((s, i) => {
        let place = at.length;
        while (place > 0 && at[place - 1] >= s) place -= 1;
        const old = at[place] === s ? 1 : 0;
        at.splice(place, old, s);
        for (const [name, column] of Object.entries(columns)) column.splice(place, old, answer.columns[name][i]);
      });
      if (answer.marks) state.data.marks = answer.marks;
    }
    state.token = answer.token;
    state.now = answer.now;
    state.stages = answer.stages;
    state.width = answer.width_s;
  }

  // -- drawing ---------------------------------------------------------------------------------------

  function traces(chart, at) {
    const { columns } = state.data;
    return chart.lines(Object.keys(columns))
      .filter(({ column }) => columns[column]?.some((value) => value !== null))
      .map(({ column, name, colour: ink, dash: dashes, shape }) => ({
        type: "scatter", mode: at.length < 3 ? "lines+markers" : "lines", name: plain(name), x: at,
        y: chart.scale ? columns[column].map((v) => (v === null ? null : v * chart.scale)) : columns[column],
        line: { color: colour(ink), width: chart.stacked ? 0.5 : 1.6, dash: dashes ?? "solid", shape: shape ?? "linear" },
        stackgroup: chart.stacked ? "all" : undefined, connectgaps: false, hovertemplate: "%{y:,.4~g}",
      }));
  }

  function markTrace(marks) {
    return {
      type: "scatter", mode: "markers", name: "", yaxis: "y2", showlegend: false, cliponaxis: false,
      x: marks.map((m) => new Date(m.at_s * 1000)), y: marks.map(() => 1), text: marks.map((m) => plain(m.text)),
      marker: { symbol: "triangle-down", size: 8, color: marks.map((m) => colour(BAD.has(m.kind) ? "bad" : "faint")) },
      hovertemplate: "%{text}<extra></extra>",
    };
  }

  function shapes(chart, marks) {
    const limit = state.now.limits_ms[chart.id];
    const lines = marks.map((m) => ({
      type: "line", xref: "x", yref: "paper", x0: new Date(m.at_s * 1000), x1: new Date(m.at_s * 1000), y0: 0, y1: 1,
      line: { color: colour(BAD.has(m.kind) ? "bad" : "faint"), width: 1, dash: "dot" }, layer: "below",
    }));
    if (limit) {
      lines.push({
        type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: limit, y1: limit,
        line: { color: colour("bad"), width: 1.2, dash: "dash" },
      });
    }
    return lines;
  }

  const latest = (marks) => marks.slice(-60);

  function layout(chart, marks) {
    const axis = { gridcolor: colour("grid"), linecolor: colour("rule"), zeroline: false, automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", separators: ".,",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("text") },
      margin: { l: 48, r: 12, t: 8, b: 30 }, showlegend: true, uirevision: `${state.span}`,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } }, hovermode: "x unified",
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("rule"), font: { color: colour("text") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("faint"), activecolor: colour("text") },
      xaxis: { ...axis, type: "date", hoverformat: "%H:%M:%S", range: shownSpan() },
      yaxis: { ...axis, rangemode: "tozero", tickformat: ",~g", range: chart.range },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      shapes: shapes(chart, marks),
    };
  }

  // The span that was asked for, so that a young run grows into it; of the whole run what there is.
  function shownSpan() {
    const { at } = state.data;
    if (!at.length || state.span === "run") return undefined;
    const end = at.at(-1) + state.width;
    const length = state.span === "5m" ? 300 : 3600;
    return [new Date(Math.max(end - length, at[0]) * 1000), new Date(end * 1000)];
  }

  const config = {
    responsive: true, displaylogo: false, showSendToCloud: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };

  const seen = new Set();
  function draw(shown = seen) {
    if (!state.data || !state.now) return;
    const at = state.data.at.map((s) => new Date(s * 1000));
    const marks = latest(state.data.marks);
    for (const chart of [...CHARTS, ...SERVER_CHARTS]) {
      if (shown.has(chart.id)) {
        Plotly.react(el(`plot-${chart.id}`), [...traces(chart, at), markTrace(marks)], layout(chart, marks), config);
      }
    }
  }

  function drawStages(shown = seen) {
    if (!state.data || !state.now) return;
    const { points = [], unit } = state.stages ?? {}; // a set for each pair of lengths: no line goes through several
    for (const { id, lines } of LOAD_CHARTS) {
      el(`plot-${id}`).parentElement.hidden = !points.length;
      if (!points.length || !shown.has(id)) continue;
      const told = lines.filter(({ column }) => points.some((of) => of[column].some((value) => value !== null)));
      const drawn = points.flatMap((of, at) => told.map(({ column, name, colour: ink, right, scale }, i) => ({
        type: "scatter", mode: "lines+markers", name: `${name} ${of.lengths}`.trimEnd(), x: of.load, yaxis: right ? "y2" : "y",
        y: of[column].map((v) => (v === null ? null : v * (scale ?? 1))),
        line: of.lengths
          ? { color: colour(`c${(at % 6) + 1}`), width: 1.6, dash: DASHES[i] }
          : { color: colour(ink), width: 1.6 },
        marker: { size: 7 }, connectgaps: false, hovertemplate: "%{y:,.4~g}",
      })));
      const base = layout({ id }, []);
      Plotly.react(el(`plot-${id}`), drawn, {
        ...base, uirevision: id, shapes: [], xaxis: { ...base.xaxis, type: "linear", range: undefined, hoverformat: ",.4~g", title: { text: unit } },
        margin: { ...base.margin, b: 44, r: 44 },
        yaxis: { ...base.yaxis, type: "linear", rangemode: "tozero", range: undefined, fixedrange: false },
        yaxis2: { ...base.yaxis, overlaying: "y", side: "right", range: [0, 103], tickmode: "linear", tick0: 0, dtick: 25, showgrid: false, visible: told.some(({ right }) => right) },
      }, config);
    }
  }

  // -- tiles and tables ------------------------------------------------------------------------------

  function tile(label, value, lines = [], tone = "") {
    return element(
      "div", { className: `tile ${tone}` }, element("div", { className: "label", textContent: label }),
      element("div", { className: "value", textContent: value }), ...lines.map((text) => element("p", { textContent: text })),
    );
  }

  const middleAndTail = (of, key) => `${figure(of[`${key}_p50_ms`])} · ${figure(of[`${key}_p99_ms`])}`;

  function tiles({ whole, recent, ...now }) {
    const last = `last ${now.recent_s} s`;
    const tones = { ok: "good", suspect: "warn", invalid: "bad" };
    const failed = recent.requests ? recent.failures / recent.requests : null;
    const failing = whole.requests ? whole.failures / whole.requests : null;
    return [
      tile("Requests/s", figure(recent.requests_per_s), [last, `${figure(whole.requests, 9)} requests since start`]),
      ...CATALOGUE.latencies.filter((latency) => latency.tile).map(({ key, label, unit }) =>
        tile(`${label} p50 · p99, ${unit}`, middleAndTail(recent, key), [last, `since start ${middleAndTail(whole, key)}`])),
      ...(whole.inputs_per_s === null ? [] : [tile("Inputs/s", figure(recent.inputs_per_s, 4), [last, `since start ${figure(whole.inputs_per_s, 4)}`])]),
      ...agents(whole.agents, recent.agents, last),
      ...(whole.images_per_s === null ? [] : [tile("Images/s", figure(recent.images_per_s, 4), [last, `since start ${figure(whole.images_per_s, 4)}`])]),
      tile("Output tokens/s", figure(recent.output_tokens_per_s, 4), [last, `input ${figure(recent.input_tokens_per_s, 4)}`]),
      tile("Goodput", share(recent.goodput), [whole.goodput === null ? "no SLO given" : last, `since start ${share(whole.goodput)}`]),
      tile("Errors", share(failed), [last, `since start ${share(failing)}`], failed ? "bad" : ""),
      client(recent.requests || now.running ? now.verdict : dash, now.cause, now.reasons, tones[now.verdict]),
    ];
  }

  // Of one height, whatever the reasons are: the charts below stay where they are. All are shown under the mouse.
  function client(verdict, cause, reasons, tone) {
    const made = tile("Client", cause ? `${verdict}: ${cause}` : verdict, [reasons.join("; ")], tone);
    made.classList.add("client");
    made.lastChild.className = "reasons";
    made.title = reasons.join("\n");
    return made;
  }

  function agents(whole, recent, last) {
    if (!whole) return [];
    const speed = (of) => figure(of?.output_tokens_per_s_p25);
    const failed = whole.jobs_failed ? `${figure(whole.jobs_failed, 9)} failed` : "none failed";
    return [
      tile("Output speed p25, tokens/s", speed(recent), [last, `since start ${speed(whole)}`]),
      tile("Jobs finished", figure(whole.jobs, 9), [failed, `${figure(whole.turns, 9)} turns since start`], whole.jobs_failed ? "warn" : ""),
      tile("Time in tools", lasting(whole.tools_s), ["of all agents, since start", "pauses that began"]),
    ];
  }

  function heading(now) {
    const places = [
      ["Status", now.running ? "RUNNING" : now.run ? "STOPPED" : "READY"],
      [now.of_agents ? "Agents" : "Users", now.target === now.users ? figure(now.users, 9) : `${figure(now.users, 9)} of ${figure(now.target, 9)}`],
      ["Workers", now.workers_lost ? `${now.workers_here}, ${now.workers_lost} lost` : String(now.workers_here)],
      ["In flight", figure(now.in_flight, 9)],
      ["Elapsed", lasting(now.elapsed_s)],
    ];
    if (now.rate !== null) places.splice(2, 0, ["Rate", `${figure(now.rate)}/s`]);
    if (now.model) places.unshift(["Model", now.model]);
    return places.map(([name, value]) => element("div", {}, element("b", { textContent: name }), value));
  }

  function row(tone, ...cells) {
    return element("tr", { className: tone }, ...cells.map((text, i) =>
      element("td", { textContent: text, className: i === 0 || typeof cells[0] === "string" && i === 1 && cells.length > 2 ? "left" : "" })));
  }

  function tables(now, marks) {
    el("workers-section").hidden = !now.workers.length;
    el("workers").replaceChildren(...now.workers.map((w) => row(
      w.state === "missing" ? "bad" : w.state === "gone" ? "warn" : "",
      w.id, w.state === "missing" ? "lost" : w.state, figure(w.users, 9), figure(w.in_flight, 9), figure(w.cpu_percent), figure(w.hub_lag_ms),
    )));
    el("workers-hidden").textContent = now.workers_hidden ? `and ${now.workers_hidden} more, which are less busy` : "";
    el("marks-section").hidden = !marks.length;
    el("marks").replaceChildren(...marks.slice(-100).reverse().map((m) => element(
      "tr", { className: BAD.has(m.kind) ? "bad" : "" },
      element("td", { className: "left", textContent: clock(new Date(m.at_s * 1000)) }), element("td", { className: "left", textContent: m.text }),
    )));
  }

  function stages() {
    const told = state.stages;
    el("stages-section").hidden = !told;
    if (!told) return drawStages();
    const all = told.chosen ? CATALOGUE.stages : CATALOGUE.stages.slice(0, -1);
    const isOptional = (head) => head === "lengths" || head === "inputs/s"; // shown where a stage has them
    const isShown = all.map(({ head }, i) => !isOptional(head) || told.rows.some(({ cells }) => cells[i]));
    const columns = all.filter((_, i) => isShown[i]);
    const toned = (lines) => lines.map(({ text, tone }) => element("p", { className: `line ${tone}`, textContent: text }));
    el("stages-title").textContent = told.title;
    el("stages-lines").replaceChildren(...toned(told.lines));
    const overs = columns.reduce((found, { over }) => {
      if (found.at(-1)?.over === over) found.at(-1).n += 1;
      else found.push({ over, n: 1 });
      return found;
    }, []);
    el("stages-over").replaceChildren(...overs.map(({ over, n }) => element("th", { colSpan: n, className: "over", textContent: over })));
    el("stages-head").replaceChildren(...columns.map(({ head, left }) => element("th", { scope: "col", className: left ? "left" : "", textContent: head })));
    el("stages").replaceChildren(...told.rows.map(({ cells, tone }) => element(
      "tr", { className: tone }, ...cells.filter((_, i) => isShown[i]).map((text, i) => element("td", { className: columns[i].left ? "left" : "", textContent: text })),
    )));
    el("stages-notes").replaceChildren(...toned(told.notes));
    el("stages-fine").replaceChildren(
      `Stages that have ended have the report\u2019s figures; those of the one that is measured are live.${told.hidden ? ` ${told.hidden} earlier ones are not listed.` : ""} `,
      ...(told.is_read ? [element("a", { href: "./stages.csv", textContent: "stages.csv" })] : []),
    );
    drawStages();
  }

  function show() {
    const { now } = state;
    stages();
    el("state").replaceChildren(...heading(now));
    el("tiles").replaceChildren(...tiles(now));
    tables(now, state.data.marks);
    const alarms = [...(now.hung ? [`${now.hung}: their requests are under way, and in none of the figures below`] : []), ...now.slow.map((text) => `Last ${now.recent_s} s: ${text}`), ...now.alarms.map((text) => `Drift: ${text}`)];
    el("alarms").hidden = !alarms.length;
    el("alarms").className = now.hung ? "banner bad" : "banner warn";
    el("alarms").replaceChildren(...alarms.map((text) => element("li", { textContent: text })));
    const missed = now.missed ? ` ${figure(now.missed, 9)} requests are missing from these numbers because a worker\u2019s live figures were lost; the report has them.` : "";
    el("fine").textContent =
      `Percentiles cover requests that ended ok. They come from histograms, with an error of at most ${share(now.relative_error)}; the report has exact values. ` +
      `Each point covers ${figure(state.width)} s. Dotted lines mark what changed.${missed}`;
    const told = Object.keys(state.data.columns);
    el("plot-inputs").parentElement.hidden = now.whole.inputs_per_s === null;
    for (const id of ["agents-speed", "agents-jobs"]) el(`plot-${id}`).parentElement.hidden = !now.whole.agents;
    el("plot-images").parentElement.hidden = now.whole.images_per_s === null;
    for (const chart of SERVER_CHARTS) el(`plot-${chart.id}`).parentElement.hidden = !chart.lines(told).length;
    el("servers-section").hidden = !starting(told, "server:").length && !now.servers_silent.length;
    el("servers-silent").hidden = !now.servers_silent.length;
    el("servers-silent").textContent = `No page of metrics from ${now.servers_silent.join(", ")}`;
    draw();
  }

  // -- asking ----------------------------------------------------------------------------------------

  function trouble(text) {
    el("trouble").hidden = !text;
    el("trouble").textContent = text;
  }

  async function ask() {
    const { span, token } = state;
    const asking = (state.asking = new AbortController());
    try {
      const query = new URLSearchParams({ span, after: token });
      const response = await fetch(`./series?${query}`, { signal: asking.signal, cache: "no-store" });
      if (response.redirected || response.status === 401) {
        return trouble("You are not logged in any more: open Locust's page and log in.");
      }
      if (!response.ok) throw new Error(`status ${response.status}`);
      const answer = await response.json();
      if (span !== state.span || state.asking !== asking) return;
      take(answer);
      state.failing = null;
      trouble("");
      el("told").textContent = `as of ${clock(new Date())}`;
      show();
    } catch (error) {
      if (error.name === "AbortError") return;
      state.failing ??= new Date();
      trouble(`No answer from Locust since ${clock(state.failing)}; it is asked again and again.`);
    }
  }

  async function again() {
    clearTimeout(state.timer);
    state.asking?.abort();
    if (!state.paused && !document.hidden) await ask();
    clearTimeout(state.timer);
    state.timer = setTimeout(again, Number(el("interval").value) * 1000);
  }

  addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (button?.dataset.span) {
      for (const other of document.querySelectorAll("[data-span]")) other.setAttribute("aria-pressed", String(other === button));
      Object.assign(state, { span: button.dataset.span, token: "" });
      again();
    }
    if (button?.id === "pause") {
      state.paused = !state.paused;
      button.setAttribute("aria-pressed", String(state.paused));
      button.textContent = state.paused ? "Go on" : "Pause";
      if (!state.paused) again();
    }
  });
  el("interval").addEventListener("change", again);
  document.addEventListener("visibilitychange", () => document.hidden || again());
  addEventListener("themechange", () => { draw(); drawStages(); });

  // Charts that nobody can see are not drawn.
  const near = new IntersectionObserver((entries) => {
    const come = new Set();
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) come.add(target.dataset.chart);
      else seen.delete(target.dataset.chart);
    }
    come.forEach((id) => seen.add(id));
    draw(come);
    drawStages(come);
  }, { rootMargin: "300px" });
  document.querySelectorAll("[data-chart]").forEach((plot) => near.observe(plot));

  again();
})();
