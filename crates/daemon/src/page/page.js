// The page of `millstream daemon --web`. Data come as server-sent events; all text from them is set as text.
"use strict";

const SCHEMA = 2;
// Seconds of the charts, and events that are kept for a program.
const WINDOW_S = 300, EVENTS = 300;

const state = { status: null, details: new Map(), samples: new Map(), events: [], last: 0, chosen: null, code: null };
const at = (id) => document.getElementById(id);

// ---- words and numbers

function number(value) {
  if (value === null || value === undefined) return "";
  const units = [[1e9, " G"], [1e6, " M"], [1e3, " k"]];
  for (const [size, unit] of units) if (value >= size) return (value / size).toPrecision(3) + unit;
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toPrecision(3);
}

const percent = (share) => (share === null || share === undefined ? "" : (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %");

function duration(us) {
  return us >= 1e6 ? (us / 1e6).toFixed(2) + " s" : us >= 1e3 ? (us / 1e3).toFixed(1) + " ms" : us + " µs";
}

function span(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

const saved = (program) =>
  program.original_ns > 0 && program.current_ns !== null && program.current_ns !== undefined
    ? 1 - program.current_ns / program.original_ns : null;

const REASONS = { start: "first look at the traffic", profile: "the profile of another session", traffic: "the traffic has changed", write: "a table was written",
  quiet: "no write came for a while" };
const OUTCOMES = { faster: "faster than the original", same: "as the original; live traffic will tell",
  trial: "slower when replayed; on trial on live traffic", not_faster: "not faster", different: "DIFFERENT from the original",
  not_evaluated: "cannot be replayed; live traffic will tell" };
const GUARDS = { valid: "valid", partial: "valid, some maps looked up", revoked: "revoked", off: "off" };

function method(how) {
  if (typeof how === "object") return how.hot_keys === 1 ? "1 hot key in code" : `${how.hot_keys} hot keys in code`;
  return { map: "the map", inlined: "table in code", shadow_table: "shadow table", cache: "cache", key_test: "key test" }[how] || how;
}

// The sentence for a record, and its kind for the time line; null for records that nobody needs to see.
function sentence(record) {
  if (record.state) {
    return { kind: "state", text: `state: ${record.state.state.replace("_", " ")}` + (record.state.reason ? ` (${record.state.reason})` : "") };
  }
  const r = record.report;
  switch (r && r.event) {
    case "attached": return { kind: "state", text: (r.took_over ? "took over on " : "attached to ") + r.interfaces.map((i) => i.interface).join(", ") };
    case "interfaces_changed": return { kind: "state", text: "interfaces: " + r.interfaces.map((i) => i.interface).join(", ") };
    case "profile_loaded": return { kind: "traffic", text: `begins with the profile of ${r.program}, ${span(r.age_s)} old, for ${r.known} of ${r.lookups} lookups` };
    case "profile_fit": return { kind: "traffic", text: `the profile has the keys of ${percent(r.share)} of the lookups` };
    case "specialised": return { kind: "installed", generation: r.generation,
      text: `generation ${r.generation} runs: ${REASONS[r.reason] || r.reason}; ${number(r.slots)} instructions, ${number(r.entries)} entries in code; ` +
        (r.compile_us + r.load_us ? `compiled in ${duration(r.compile_us)}, loaded in ${duration(r.load_us)}` : "it stood by") +
        (r.latency_us ? `, ${duration(r.latency_us)} after the write` : "") };
    case "standby_ready": return { kind: "standby", text: `generation ${r.generation} stands by for table writes` };
    case "confirmed": return { kind: "confirmed", text: `a write changed nothing for generation ${r.generation} (${duration(r.latency_us)})` };
    case "refreshed": return { kind: "confirmed", text: `shadow tables of generation ${r.generation} follow a write` +
      (r.shadow_tables_us ? ` (${duration(r.shadow_tables_us)})` : "") };
    case "withdrawn": return { kind: "withdrawn", generation: r.generation, text: `generation ${r.generation} withdrawn: ${r.reason}` };
    case "evaluated": return { kind: r.outcome === "different" ? "withdrawn" : "evaluated",
      text: `generation ${r.generation} compared on ${number(r.packets)} packets: ${OUTCOMES[r.outcome] || r.outcome}` +
        (r.gain_ns ? `, ${r.gain_ns.toFixed(1)} ns per packet saved` : "") + (r.reason ? ` (${r.reason})` : "") };
    case "traffic_changed": return { kind: "traffic", text: `the traffic has changed: ${r.current_misses.toFixed(2)} lookups per packet miss the hot keys (usually ${r.usual_misses.toFixed(2)})` };
    case "dropped": return { kind: "dropped", text: `not specialized: ${r.reason}` };
    case "stopped": return { kind: "state", text: `stopped; attached now: ${r.attached_program}` };
    default: return null;
  }
}

// ---- elements

function make(name, options = {}, ...children) {
  const element = document.createElement(name);
  if (options.text !== undefined) element.textContent = options.text;
  if (options.class) element.className = options.class;
  for (const [key, value] of Object.entries(options.attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function draw(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const cell = (text, kind) => make("td", { text, class: kind || "" });

// ---- parts of the page

function showDaemon() {
  const s = state.status;
  at("daemon").textContent = `version ${s.version}, up ${span(s.uptime_s)}, ${(100 * s.cpu_s / Math.max(s.uptime_s, 1)).toFixed(2)} % of a processor, ${number(s.rss_bytes)}B`;
}

function showPrograms() {
  const body = at("programs").tBodies[0], programs = state.status.programs;
  at("none").hidden = programs.length > 0;
  const held = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.program : undefined;
  body.replaceChildren(...programs.map((program) => {
    const button = make("button", { text: program.name, attributes: { type: "button", "data-program": program.name } });
    button.setAttribute("aria-pressed", String(program.name === state.chosen));
    button.addEventListener("click", () => choose(program.name));
    const gain = saved(program), isWell = program.state === "running";
    const row = make("tr", { class: program.name === state.chosen ? "chosen" : "" },
      make("th", { attributes: { scope: "row" } }, button),
      cell(program.state.replace("_", " "), isWell ? "good" : "bad"),
      cell(program.interfaces.map((i) => i.interface + (i.mode ? ` (${i.mode})` : "")).concat(program.missing.map((m) => m + " (missing)")).join(", ")),
      cell(number(program.pps), "number"), cell(number(program.original_ns), "number"), cell(number(program.current_ns), "number"),
      cell(percent(gain), gain > 0 ? "number good" : "number"),
      cell(program.generation ? String(program.generation) : "original", "number"),
      cell(GUARDS[program.guard] || "", program.guard === "revoked" ? "bad" : ""));
    return row;
  }));
  if (held !== undefined) {
    const again = [...body.querySelectorAll("button")].find((b) => b.dataset.program === held);
    if (again) again.focus();
  }
}

function choose(name) {
  const isOther = name !== state.chosen;
  state.chosen = name;
  if (isOther) readCode();
  showPrograms();
  showChosen();
}

function chosen() {
  const programs = state.status ? state.status.programs : [];
  return programs.find((p) => p.name === state.chosen) || programs[0];
}

function showFacts(program) {
  const counts = program.counts || {}, details = state.details.get(program.name) || {};
  const facts = [["Object", program.object], ["Program", program.program], ["Watched maps", (program.watched || []).join(", ")],
    ["Instructions", details.original_slots ? `${number(details.original_slots)}` + (details.variant_slots ? `, specialized ${number(details.variant_slots)}` : "") : ""],
    ["Shadow tables", details.shadow_table_bytes ? number(details.shadow_table_bytes) + "B" : ""],
    ["Packets", number(program.packets)], ["Packets in specialized code", number(program.specialised)],
    ["Table writes seen", number(program.writes)], ["Generations installed", number(counts.installs)], ["Withdrawn", number(counts.withdrawals)],
    ["Not made or not used", number(counts.dropped_generations)], ["Failures", number(counts.failures)]];
  at("facts").replaceChildren(...facts.filter(([, value]) => value).map(([name, value]) =>
    make("div", {}, make("dt", { text: name }), make("dd", { text: value }))));
  const refused = (program.refused || []).map(([map, why]) => `map ${map} is not specialized on: ${why}`);
  const notes = [program.reason, ...(program.advice || [])].filter(Boolean).map((text) => make("p", { text, class: "note" }));
  if (refused.length) {
    notes.push(make("details", {}, make("summary", { text: `${refused.length} maps are left as they are` }),
      make("ul", {}, ...refused.map((text) => make("li", { text })))));
  }
  const wasOpen = at("notes").querySelector("details[open]");
  at("notes").replaceChildren(...notes);
  if (wasOpen && at("notes").querySelector("details")) at("notes").querySelector("details").open = true;
}

function showLookups(program) {
  const details = state.details.get(program.name), body = at("lookups").tBodies[0];
  const lookups = details ? [...details.lookups].sort((a, b) => b.seen - a.seen) : [];
  body.replaceChildren(...lookups.map((lookup) => make("tr", {},
    make("th", { text: lookup.map, attributes: { scope: "row" } }), cell(lookup.map_type), cell(lookup.source || lookup.program),
    cell(method(lookup.how), lookup.how === "map" ? "" : "good"), cell(number(lookup.seen), "number"), cell(percent(lookup.answered), "number"),
    make("td", {}, make("ul", { class: "keys" }, ...lookup.keys.slice(0, 5).map((key) => make("li", {},
      make("code", { text: key.text, class: key.in_code ? "good" : "" }),
      make("meter", { attributes: { value: key.share, min: 0, max: 1, "aria-label": `share of ${key.text}` } }),
      make("span", { text: percent(key.share), class: "number" }))))))));
  const slots = details && details.chain ? details.chain : [];
  at("slots-title").hidden = slots.length === 0;
  at("slots").replaceChildren(...slots.map((s) => make("li", { text: `${s.array}[${s.slot}]: ${s.program}, ${s.target}` })));
}

// Instructions without their slots, which differ if anything before them does, and without distances of jumps.
const operations = (instructions) => instructions.map((text) => text.replace(/^\d+: /, "").replace(/ goto .*/, " goto")).join("\n");

function showCode() {
  const { code } = state, body = at("code-lines").tBodies[0];
  if (!code) return body.replaceChildren();
  const isChanged = (line) => operations(line.original) !== operations(line.variant);
  const lines = code.generation && at("code-changed").checked ? code.lines.filter(isChanged) : code.lines;
  at("code-note").textContent = !code.generation ? "No specialized code runs." :
    `Generation ${code.generation}: ${lines.length} of ${code.lines.length} lines are shown.`;
  const list = (instructions) => make("td", {}, make("pre", { text: instructions.join("\n") }));
  body.replaceChildren(...lines.map((line) => make("tr", { class: isChanged(line) ? "" : "soft" },
    make("th", { text: line.source || "", attributes: { scope: "row" } }), make("td", {}, make("code", { text: line.text })),
    list(line.original), list(line.variant))));
}

async function readCode() {
  const program = state.chosen;
  state.code = null;
  showCode();
  if (!at("code").open || !program) return;
  at("code-note").textContent = "reading";
  let answer;
  try {
    const response = await fetch("/data/code?" + encodeURIComponent(program), { headers: { Authorization: `Bearer ${token()}` }, cache: "no-store" });
    answer = await response.json();
  } catch (error) {
    answer = { message: "the daemon does not answer" };
  }
  if (program !== state.chosen) return;
  state.code = answer.code || null;
  showCode();
  if (!answer.code) at("code-note").textContent = answer.message || "there is no code";
}

// Lines over the last minutes. `series`: names of sample fields with their classes.
function chart(id, samples, series, unit) {
  const svg = at(id), box = svg.getBoundingClientRect(), [width, height] = [box.width || 400, box.height || 140];
  const left = 56, top = 10, bottom = 20, now = Date.now() / 1000;
  const values = samples.flatMap((s) => series.map(([field]) => s[field])).filter((v) => v !== null && v !== undefined);
  const most = 1.1 * Math.max(...values, 1);
  const x = (time) => left + (width - left - 8) * (1 - (now - time) / WINDOW_S), y = (v) => top + (height - top - bottom) * (1 - v / most);
  const parts = [0, 0.5, 1].flatMap((f) => [
    draw("line", { x1: left, x2: width - 8, y1: y(f * most), y2: y(f * most), class: "axis" }),
    draw("text", { x: left - 6, y: y(f * most) + 4, "text-anchor": "end" }, number(f * most))]);
  parts.push(draw("text", { x: left, y: height - 5 }, `${WINDOW_S / 60} min ago`), draw("text", { x: width - 8, y: height - 5, "text-anchor": "end" }, "now"));
  for (const [field, kind] of series) {
    const points = samples.filter((s) => s[field] !== null && s[field] !== undefined).map((s) => `${x(s.time).toFixed(1)},${y(s[field]).toFixed(1)}`);
    parts.push(draw("polyline", { points: points.join(" "), class: kind }));
  }
  if (!values.length) parts.push(draw("text", { x: width / 2, y: height / 2 - 12, "text-anchor": "middle" }, "not measured yet"));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...parts);
  const latest = samples[samples.length - 1] || {};
  svg.setAttribute("aria-label", "now " + series.map(([field, kind]) => `${kind}: ${number(latest[field]) || "not known"} ${unit}`).join(", "));
}

function showEvents(program) {
  const events = state.events.filter((e) => e.program === program.name);
  const list = at("events");
  if (list.dataset.program === program.name && list.dataset.last === String(state.last)) return;
  Object.assign(list.dataset, { program: program.name, last: String(state.last) });
  list.replaceChildren(...[...events].reverse().map((e) => make("li", {},
    make("time", { text: new Date(e.time_ms).toLocaleTimeString(), class: "soft", attributes: { datetime: new Date(e.time_ms).toISOString() } }),
    make("span", { text: e.text, class: e.kind === "withdrawn" ? "bad" : e.kind === "installed" ? "good" : "" }))));
}

function showTimeLine(program) {
  const events = state.events.filter((e) => e.program === program.name && e.kind !== "confirmed");
  const svg = at("time-line"), width = svg.getBoundingClientRect().width || 600, height = 72, now = Date.now();
  const first = Math.min(events.length ? events[0].time_ms : now, now - 60000), x = (t) => 10 + (width - 20) * (t - first) / (now - first);
  const parts = [draw("line", { x1: 10, x2: width - 10, y1: 36, y2: 36, class: "axis" }),
    draw("text", { x: 10, y: 66 }, new Date(first).toLocaleTimeString()), draw("text", { x: width - 10, y: 66, "text-anchor": "end" }, "now")];
  let free = -Infinity;
  for (const e of events) {
    const mark = draw("circle", { cx: x(e.time_ms), cy: 36, r: e.kind === "installed" ? 6 : 3.5, class: `mark ${e.kind}` });
    mark.append(draw("title", {}, `${new Date(e.time_ms).toLocaleTimeString()}: ${e.text}`));
    parts.push(mark);
    if (e.kind === "installed" && x(e.time_ms) > free) {
      parts.push(draw("text", { x: x(e.time_ms), y: 22, "text-anchor": "middle" }, String(e.generation)));
      free = x(e.time_ms) + 24;
    }
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...parts);
  const installed = events.filter((e) => e.kind === "installed").length;
  svg.setAttribute("aria-label", `${installed} generations installed since ${new Date(first).toLocaleTimeString()}; the list below has the reasons`);
}

function showChosen() {
  const program = chosen();
  at("selected").hidden = !program;
  if (!program) return;
  state.chosen = program.name;
  at("selected-title").textContent = program.name;
  showFacts(program);
  showLookups(program);
  const samples = state.samples.get(program.name) || [];
  chart("rate", samples, [["pps", "attached"]], "packets per second");
  chart("time", samples, [["original", "original"], ["current", "attached"]], "nanoseconds");
  showTimeLine(program);
  showEvents(program);
}

// ---- data

function take(name, data) {
  if (data.schema !== SCHEMA) {
    connection("this page is of another version: load it again", false);
    return;
  }
  if (name === "status") {
    state.status = data;
    const time = Date.now() / 1000;
    for (const p of data.programs) {
      const samples = (state.samples.get(p.name) || []).filter((s) => s.time > time - WINDOW_S);
      samples.push({ time, pps: p.pps, original: p.original_ns, current: p.current_ns });
      state.samples.set(p.name, samples);
    }
    if (state.chosen === null && data.programs.length) state.chosen = data.programs[0].name;
    showDaemon();
    showPrograms();
    showChosen();
  } else if (name === "details") {
    state.details.set(data.program, data.details);
    if (data.program === state.chosen && state.status) showChosen();
  } else if (name === "history") {
    for (const record of data.records) {
      if (record.number <= state.last) continue;
      state.last = record.number;
      const said = sentence(record);
      if (said) state.events.push({ program: record.program, time_ms: record.time_ms, ...said });
    }
    const kept = new Map();
    state.events = state.events.reverse().filter((e) => {
      kept.set(e.program, (kept.get(e.program) || 0) + 1);
      return kept.get(e.program) <= EVENTS;
    }).reverse();
    if (state.status) showChosen();
  }
}

function connection(text, isWell) {
  const place = at("connection");
  if (place.textContent !== text) place.textContent = text;
  place.className = isWell ? "good" : "bad";
}

// The token of the address's fragment, which is removed from there, or of this tab.
function token() {
  const given = location.hash.slice(1);
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

async function read(secret) {
  const answer = await fetch("/events", { headers: { Authorization: `Bearer ${secret}` }, cache: "no-store" });
  if (answer.status === 401) return "token";
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  connection("live", true);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return "end";
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const field = (name) => event.split("\n").find((line) => line.startsWith(name + ": "))?.slice(name.length + 2);
      if (field("event") && field("data")) take(field("event"), JSON.parse(field("data")));
    }
  }
}

async function follow() {
  for (let pause = 1000; ;) {
    const secret = token();
    if (!secret) return ask();
    try {
      const end = await read(secret);
      if (end === "token") return ask();
      pause = 1000;
    } catch (error) {
      pause = Math.min(2 * pause, 15000);
    }
    // A daemon that was started again counts its records anew.
    state.last = 0;
    state.events = [];
    connection("the daemon does not answer; trying again", false);
    await new Promise((done) => setTimeout(done, pause));
  }
}

function ask() {
  sessionStorage.removeItem("token");
  connection("a token is needed", false);
  at("ask").hidden = false;
  at("token").focus();
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value.trim());
  at("token").value = "";
  at("ask").hidden = true;
  connection("connecting", false);
  follow();
});
at("code").addEventListener("toggle", readCode);
at("code-again").addEventListener("click", readCode);
at("code-changed").addEventListener("change", showCode);
window.addEventListener("resize", () => { if (state.status) showChosen(); });
follow();
