"use strict";
// Draws the page from its data. Everything that comes from outside is set as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const SOURCES = ["demo", "prefix", "hint", "rollout"];
const REASONS = Object.keys(data.silent);
const MARKS = { "left out": "s-out", mask: "s-mask", "factor 0": "s-factor", "dead group": "s-dead",
  "zero advantage": "s-zero", clip: "s-clip", "weight 0": "s-weight" };
const view = { layout: "lanes", scale: "root", rows: "group", lanes: "given", theme: "auto",
  hidden: new Set(), off: new Set() };

const $ = (id) => document.getElementById(id);
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key.startsWith("--")) node.style.setProperty(key, value);
    else node.setAttribute(key, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

function number(x, digits = 3) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  if (size < 1e-15) return "0";
  const text = size >= 1e5 || size < 1e-4 ? x.toExponential(digits - 1) : String(Number(x.toPrecision(digits)));
  return text.replace(/-/g, "−").replace("e+", "e");
}
const signed = (x, digits) => (x > 1e-15 ? "+" : "") + number(x, digits);
const percent = (x) => `${Math.round(100 * x)}%`;

// Whitespace, control and direction characters become visible; nothing else of a token is changed.
function visible(text) {
  return text.replace(/\r/g, "␍").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "\u00b7")
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => `⟨${c.charCodeAt(0).toString(16)}⟩`) || "∅";
}

const shown = data.lanes.filter((lane) => !lane.problem);
for (const lane of shown) {
  lane.largest = Math.max(0, ...lane.rows.map((row) => Math.max(0, ...row.c.map(Math.abs))));
  lane.share = lane.sft + lane.rl > 0 ? lane.sft / (lane.sft + lane.rl) : null;
}
const largest = Math.max(0, ...shown.map((lane) => lane.largest)) || 1;
const largestSum = Math.max(1e-300, ...shown.flatMap((lane) => Object.values(lane.sums).map((s) => s[1])));
const sources = SOURCES.filter((source) => data.rows.some((row) => row.source.includes(source)));
const isSft = (source) => source !== "rollout";

function strength(c, lane) {
  const full = view.scale === "own" ? lane.largest || 1 : largest;
  const share = Math.min(1, Math.abs(c) / full);
  return view.scale === "linear" ? share : Math.sqrt(share);
}

// The look of a token: a colour by its coefficient, or a mark by the reason why it is silent.
function look(base, lane, r, i) {
  const row = lane.rows[r];
  const c = row.c[i];
  if (row.silent[i] >= 0 || c === 0) return { class: `${base} s ${MARKS[REASONS[row.silent[i]]] || ""}` };
  const t = strength(c, lane);
  const level = (t > 0.42 ? " mid" : "") + (t > (c > 0 ? 0.76 : 0.86) ? " hi" : "");
  return { class: `${base} ${c > 0 ? "p" : "n"}${level}`, "--t": (0.04 + 0.96 * t).toFixed(3) };
}

function tokenText(r, i, lane) {
  const texts = data.rows[r].text;
  if (texts) return visible(texts[i]);
  return lane ? signed(lane.rows[r].c[i], 2) : String(i);
}

function lanesInOrder() {
  const lanes = shown.filter((lane) => !view.hidden.has(lane.name));
  const by = { name: (l) => l.name, sft: (l) => -(l.share ?? -1), total: (l) => -(l.sft + l.rl) }[view.lanes];
  return by ? [...lanes].sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0)) : lanes;
}

const sizeOf = (r) => Math.max(0, ...shown.map((l) => Math.max(0, ...l.rows[r].c.map((c) => Math.abs(c) / (l.largest || 1)))));
function disagreement(r) {
  const n = data.rows[r].source.length;
  let sum = 0;
  for (let i = 0; i < n; i++) {
    const at = shown.map((l) => l.rows[r].c[i] / (l.largest || 1));
    sum += Math.max(...at) - Math.min(...at);
  }
  return n ? sum / n : 0;
}

// Sections of rows: one per group, or a single one in another order.
function sections() {
  const order = data.rows.map((_, r) => r).filter((r) => {
    const of = data.rows[r].source;
    return !of.length || of.some((source) => !view.off.has(source));
  });
  if (view.rows === "group") {
    const groups = new Map();
    for (const r of order) {
      const key = data.rows[r].group === null ? `row ${r}` : JSON.stringify(data.rows[r].group);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(r);
    }
    return [...groups.values()];
  }
  const by = { size: (r) => -sizeOf(r), differ: (r) => -disagreement(r), reward: (r) => -(data.rows[r].reward ?? -Infinity) }[view.rows];
  return [by ? order.sort((a, b) => by(a) - by(b) || a - b) : order];
}

function drawRows() {
  hideTip();
  const lanes = lanesInOrder();
  const place = $("rows");
  place.className = view.layout;
  if (lanes.length) measure(place, lanes);
  place.replaceChildren(...sections().map((rows) => section(rows, lanes)));
  if (!lanes.length) place.replaceChildren(el("p", { class: "hint" }, "Every method is hidden; click one in the table above."));
}

function section(rows, lanes) {
  const grouped = view.rows === "group";
  const first = data.rows[rows[0]];
  const same = grouped && rows.every((r) => data.rows[r].prompt === first.prompt);
  return el("section", { class: "group" },
    grouped && el("header", {},
      first.prompt !== null && same ? el("span", { class: "prompt" }, first.prompt.trim() || "∅") : null,
      el("span", { class: "sub" }, groupFacts(rows))) || null,
    el("div", { class: "cards" }, rows.map((r) => rowCard(r, lanes, same))));
}

function groupFacts(rows) {
  const own = rows.map((r) => data.rows[r]).filter((row) => row.kind.includes("rollout") && row.reward !== null);
  const name = data.rows[rows[0]].group;
  const parts = name === null ? [] : [`group ${name}`];
  if (own.length) {
    const rewards = [...new Set(own.map((row) => row.reward))];
    parts.push(rewards.length === 1 ? `${own.length} rollouts, all with reward ${number(rewards[0])}` :
      `${own.length} rollouts, mean reward ${number(own.reduce((s, row) => s + row.reward, 0) / own.length)}`);
  }
  return parts.join(" · ");
}

// Short rows stand beside each other, as wide as the longest of them needs; a long row has its line to itself.
const SHORT = 640;
const tokensWidth = (r, lanes) => data.rows[r].source.reduce((w, _, i) => w + Math.max(15, 8.45 * tokenText(r, i, lanes[0]).length + 6) + 2, 4);
function measure(place, lanes) {
  const who = Math.min(190, 58 + 7.2 * Math.max(0, ...lanes.map((lane) => lane.name.length)));
  const widths = data.rows.map((_, r) => tokensWidth(r, lanes)).filter((w) => w <= SHORT);
  place.style.setProperty("--who", `${who}px`);
  place.style.setProperty("--card-width", `${Math.max(240, ...widths) + who + 34}px`);
}

function rowCard(r, lanes, promptShown) {
  const row = data.rows[r];
  const facts = [row.reward === null ? null : `reward ${number(row.reward)}`, row.verdict, row.finish === "length" ? "cut off at the limit" : row.finish,
    `${row.source.length} token${row.source.length === 1 ? "" : "s"}`].filter((x) => x !== null);
  return el("article", { class: `row${tokensWidth(r, lanes) > SHORT ? " wide" : ""}` },
    el("header", {},
      el("span", { class: "num" }, `row ${r}`),
      row.kind.split("+").map((kind) => el("span", { class: `tag ${isSft(kind) ? "sft" : "rl"}` }, kind)),
      el("span", {}, facts.join(" · ")),
      row.prompt !== null && !promptShown ? el("span", { class: "num", title: row.prompt }, `after “${row.prompt.slice(-40).trim()}”`) : null),
    el("div", { class: "lanes" }, view.layout === "stack" ? null : lanes.map((lane) => laneView(r, lane))),
    view.layout === "stack" ? stacked(r, lanes) : null);
}

function laneView(r, lane) {
  const row = lane.rows[r];
  const used = [...new Set(row.a.filter((a, i) => row.parts[i].length))];
  const range = used.length > 1 ? `A ${signed(Math.min(...used))} … ${signed(Math.max(...used))}` : used.length ? `A ${signed(used[0])}` : "";
  return el("div", { class: "lane" },
    el("div", { class: "who" }, el("b", {}, lane.name), " ", el("span", {}, range)),
    el("div", { class: "tokens", role: "group", "aria-label": `row ${r} under ${lane.name}` },
      row.c.length ? row.c.map((_, i) => chip("t", r, i, lane)) : el("span", { class: "empty" }, "(empty)")));
}

function chip(base, r, i, lane) {
  const attributes = look(base, lane, r, i);
  if (view.off.has(data.rows[r].source[i])) attributes.class += " off-source";
  const node = el("span", { ...attributes, tabindex: i === 0 ? 0 : -1 }, base === "t" ? tokenText(r, i, lane) : null);
  node.at = { r, i, lane };
  return node;
}

function stacked(r, lanes) {
  const n = data.rows[r].source.length;
  return el("div", { class: "stacked" },
    el("div", { class: "names" }, lanes.map((lane) => el("span", { title: lane.name }, lane.name))),
    el("div", {}, n ? data.rows[r].source.map((source, i) =>
      el("span", { class: `column${view.off.has(source) ? " off-source" : ""}` },
        el("span", { class: "head" }, tokenText(r, i, null)),
        lanes.map((lane) => chip("cell", r, i, lane)))) : el("span", { class: "empty" }, "(empty)")));
}

// The table of methods.

function drawBalance() {
  const order = lanesInOrder();
  const rest = data.lanes.filter((lane) => !order.includes(lane));
  const head = ["method", "loss", "terms: factor × Σ / n", "Σ coefficients by source", "SFT : RL", "tokens that are silent"];
  $("balance").replaceChildren(
    el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, [...order, ...rest].map(methodLine)));
}

function methodLine(lane) {
  const off = view.hidden.has(lane.name);
  const name = el("button", { class: "toggle", type: "button", "aria-pressed": String(!off), disabled: lane.problem ? "" : null,
    onclick: () => { off ? view.hidden.delete(lane.name) : view.hidden.add(lane.name); drawBalance(); drawRows(); } }, lane.name);
  const about = el("td", {}, name, el("div", { class: "sub" }, [lane.title, lane.stage && `stage ${lane.stage}`].filter(Boolean).join(" · ")));
  if (lane.problem)
    return el("tr", { class: "off" }, about, el("td", { colspan: 5, style: "opacity:1" }, el("p", { class: "problem" }, `Not shown: ${lane.problem}`)));
  const silent = REASONS.map((reason, k) => [reason, lane.rows.reduce((s, row) => s + row.silent.filter((x) => x === k).length, 0)]).filter(([, n]) => n);
  const all = lane.rows.reduce((s, row) => s + row.c.length, 0);
  const trained = all - silent.reduce((s, [, n]) => s + n, 0);
  return el("tr", { class: off ? "off" : "" }, about,
    el("td", { class: "num loss" }, number(lane.loss, 4)),
    el("td", { class: "formulas" }, lane.terms.map((term) => el("div", { class: "term" },
      (term.formula || term.name).split("; ").map((part) => el("code", {}, part)),
      el("small", {}, `${term.name}: ${number(term.coefficient)} × Σ over ${term.sources.join(", ")} / ${number(term.n)} (${term.denominator})`))),
      lane.advantage ? el("small", {}, `where ${lane.advantage}`) : null),
    el("td", {}, sources.filter((s) => lane.sums[s]).map((s) => sumLine(s, lane.sums[s]))),
    el("td", {}, balanceOf(lane)),
    el("td", { class: "reasons" }, el("div", {}, el("b", {}, `${trained} of ${all}`), " trained"),
      silent.map(([reason, n]) => el("div", { title: data.silent[reason] }, el("b", {}, String(n)), ` ${reason}`)),
      lane.notes.map((note) => el("p", { class: "problem" }, note))));
}

function sumLine(source, [total, absolute]) {
  const width = (x) => `${50 * Math.sqrt(Math.max(0, x) / largestSum)}%`;
  const bar = (side, x) => { const i = el("i", { class: side }); i.style.width = width(x); return i; };
  const up = (absolute + total) / 2, down = (absolute - total) / 2;
  return el("div", { class: "sumline", title: `pushed up ${number(up)}, down ${number(down)}, sum ${signed(total)}` },
    el("span", {}, source), el("span", { class: "axis" }, bar("p", up), bar("n", down)),
    el("span", { class: "num" }, number(absolute)));
}

function balanceOf(lane) {
  if (lane.share === null) return el("span", { class: "sub" }, "nothing is trained");
  const part = (kind, x) => { const i = el("span", { class: kind }); i.style.width = `${100 * x}%`; return i; };
  const ratio = lane.rl === 0 ? "SFT only" : lane.sft === 0 ? "RL only" :
    lane.sft >= lane.rl ? `${number(lane.sft / lane.rl, 2)} : 1` : `1 : ${number(lane.rl / lane.sft, 2)}`;
  return el("div", {}, el("div", { class: "split", role: "img", "aria-label": `SFT share ${percent(lane.share)}` }, part("sft", lane.share), part("rl", 1 - lane.share)),
    el("div", { class: "ratio" }, ratio, el("em", {}, `  ${percent(lane.share)} SFT`)));
}

// The card with a token's numbers.

let pinned = false, current = null;
function showTip(node, pin) {
  const { r, i, lane } = node.at;
  if (current) unmark();
  current = node;
  pinned = Boolean(pin);
  node.classList.add("at");
  document.querySelectorAll(".t").forEach((other) => { if (other.at.r === r && other.at.i === i && other !== node) other.classList.add("same"); });
  const tip = $("tip");
  tip.replaceChildren(...tipContent(r, i, lane));
  tip.hidden = false;
  tip.classList.toggle("pinned", pinned);
  tip.scrollTop = 0;
  const box = node.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const below = box.bottom + 10 + size.height < innerHeight || box.top < size.height + 10;
  tip.style.left = `${Math.max(12, Math.min(innerWidth - size.width - 12, box.left - 20))}px`;
  tip.style.top = `${Math.max(8, Math.min(innerHeight - size.height - 8, below ? box.bottom + 10 : box.top - size.height - 10))}px`;
  node.setAttribute("aria-label", `${visible(data.rows[r].text ? data.rows[r].text[i] : String(i))}, ${lane.name}, coefficient ${signed(lane.rows[r].c[i])}`);
}
function unmark() { document.querySelectorAll(".at, .same").forEach((node) => node.classList.remove("at", "same")); }
function hideTip() { $("tip").hidden = true; pinned = false; current = null; unmark(); }

function fact(name, value) { return value === null || value === undefined ? null : el("div", {}, el("dt", {}, name), el("dd", { class: "num" }, value)); }
function tipContent(r, i, lane) {
  const row = data.rows[r], at = lane.rows[r], logp = row.logp[i];
  const some = (key, name, f = number) => (row[key] && row[key][i] !== null ? fact(name, f(row[key][i])) : null);
  const reason = at.silent[i] >= 0 ? REASONS[at.silent[i]] : null;
  const delta = row.ref_logp && row.ref_logp[i] !== null ? fact("log p − log ref", signed(logp - row.ref_logp[i])) : null;
  return [
    el("h3", {}, row.text ? visible(row.text[i]) : `token ${i}`),
    el("div", { class: "meta" }, `${row.source[i]} · token ${i} of row ${r}${row.span[i] ? ` · in ${row.span[i]}` : ""}`),
    el("dl", { class: "facts" }, fact("log p", number(logp)), fact("p", number(Math.exp(logp), 4)), some("ratio", "ratio"), some("entropy", "entropy"), delta),
    el("div", { class: "big" }, el("b", {}, signed(at.c[i])), el("span", {}, lane.name)),
    ...at.parts[i].map(([k, c, a, n, w]) => el("div", { class: "eq" }, el("b", {}, lane.terms[k].name), ` ${signed(c)} = ${number(lane.terms[k].coefficient)} / ${number(n)}`,
      w === null ? (c ? ", its KL alone (A = 0)" : ` × A ${signed(a)}`) : ` × w ${number(w)} × A ${signed(a)}`)),
    reason ? el("p", { class: "why" }, el("b", {}, `silent, ${reason}: `), data.silent[reason], lane.details[at.detail[i]] ? ` (${lane.details[at.detail[i]]})` : "", ".") : null,
    shown.length > 1 ? el("div", { class: "all" }, lanesInOrder().flatMap((other) => besides(other, r, i, other === lane))) : null,
  ].filter(Boolean);
}

function besides(lane, r, i, here) {
  const c = lane.rows[r].c[i], most = Math.max(...shown.map((other) => Math.abs(other.rows[r].c[i]))) || 1;
  const bar = el("i", { class: c > 0 ? "p" : "n" });
  bar.style.width = `${(50 * Math.abs(c)) / most}%`;
  const reason = REASONS[lane.rows[r].silent[i]];
  return [el("span", { class: here ? "here" : null, title: lane.name }, lane.name), el("span", { class: "axis" }, c ? bar : null),
    el("span", { class: "num" }, c ? signed(c) : reason || "0")];
}

function moveFrom(node, key) {
  const { r, i, lane } = node.at;
  const chips = [...document.querySelectorAll(view.layout === "stack" ? ".cell" : ".t")];
  const find = (test) => chips.find((other) => test(other.at));
  const lanes = lanesInOrder(), k = lanes.indexOf(lane), n = data.rows[r].source.length;
  if (key === "ArrowRight" || key === "ArrowLeft") {
    const to = (i + (key === "ArrowRight" ? 1 : -1) + n) % n;
    return find((at) => at.r === r && at.lane === lane && at.i === to);
  }
  const next = k + (key === "ArrowDown" ? 1 : -1);
  if (next >= 0 && next < lanes.length) return find((at) => at.r === r && at.lane === lanes[next] && at.i === i);
  const order = [...new Set(chips.map((other) => other.at.r))], row = order[order.indexOf(r) + (next < 0 ? -1 : 1)];
  const edge = lanes[next < 0 ? lanes.length - 1 : 0];
  return find((at) => at.r === row && at.lane === edge && at.i === Math.min(i, data.rows[row].source.length - 1));
}

// Controls.

function choice(place, options, key, redraw) {
  place.replaceChildren(...options.map(([value, text, title]) => el("button", { type: "button", role: "radio", title,
    "aria-checked": String(view[key] === value), onclick: () => { view[key] = value; choice(place, options, key, redraw); redraw(); } }, text)));
}
function select(place, options, key, redraw) {
  place.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
  place.value = view[key];
  place.onchange = () => { view[key] = place.value; redraw(); };
}
function drawSources() {
  $("sources").replaceChildren(...sources.map((source) => el("button", { type: "button", "aria-pressed": String(!view.off.has(source)),
    onclick: () => { view.off.has(source) ? view.off.delete(source) : view.off.add(source); drawSources(); drawRows(); } }, source)));
}

function drawLegend() {
  const own = view.scale === "own";
  const occurring = REASONS.filter((_, k) => shown.some((lane) => lane.rows.some((row) => row.silent.includes(k))));
  $("legend").replaceChildren(
    el("span", { class: "ramp" }, el("b", {}, own ? "−max" : `−${number(largest)}`), el("i", {}), el("b", {}, own ? "+max" : `+${number(largest)}`)),
    el("span", {}, { root: "one scale for all methods, √|coefficient|", linear: "one scale for all methods, linear", own: "each method on its own scale, √|coefficient|" }[view.scale]),
    ...occurring.map((reason) => el("span", { class: "key", title: data.silent[reason] },
      el("span", { class: `t s ${MARKS[reason]}`, style: "font:12px var(--mono)" }, "abc"), reason)));
  $("legend").querySelectorAll(".t").forEach((node) => { node.at = { r: -1, i: -1 }; });
}

const THEMES = { auto: "◐ system", light: "○ light", dark: "● dark" };
function setTheme(theme) {
  view.theme = theme in THEMES ? theme : "auto";
  if (view.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = view.theme;
  $("theme").textContent = THEMES[view.theme];
  try { localStorage.setItem("interlace-theme", view.theme); } catch { /* storage may be closed to files */ }
}

function start() {
  let saved = "auto";
  try { saved = localStorage.getItem("interlace-theme") || "auto"; } catch { /* storage may be closed to files */ }
  // A fragment such as #layout=stack&theme=dark&token=3.5 opens the page in a given view.
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const key of ["layout", "scale", "rows", "lanes"]) if (asked.has(key)) view[key] = asked.get(key);
  setTheme(asked.get("theme") || saved);
  $("theme").onclick = () => setTheme({ auto: "dark", dark: "light", light: "auto" }[view.theme]);
  $("how-many").textContent = data.lanes.length === 1 ? "one method" : `${data.lanes.length} methods`;
  const tokens = data.rows.reduce((s, row) => s + row.source.length, 0);
  $("facts").replaceChildren(...[...Object.entries(data.about), ["step", String(data.step)],
    ["rows", `${data.rows.length} with ${tokens} tokens (${sources.map((s) => `${data.rows.reduce((n, row) => n + row.source.filter((x) => x === s).length, 0)} ${s}`).join(", ")})`]]
    .map(([name, value]) => fact(name, value)));
  choice($("layout"), [["lanes", "lanes", "methods under each other"], ["columns", "columns", "methods beside each other"], ["stack", "stack", "all methods under each token"]], "layout", drawRows);
  drawSources();
  select($("scale"), [["root", "common, √"], ["linear", "common, linear"], ["own", "per method, √"]], "scale", () => { drawLegend(); drawRows(); });
  select($("row-order"), [["group", "by prompt"], ["batch", "batch order"], ["differ", "most disagreement first"], ["size", "largest coefficient first"], ["reward", "best reward first"]], "rows", drawRows);
  select($("lane-order"), [["given", "as given"], ["sft", "most SFT first"], ["total", "largest Σ|coefficient| first"], ["name", "by name"]], "lanes", () => { drawBalance(); drawRows(); });
  drawLegend();
  drawBalance();
  drawRows();
  const token = /^(\d+)\.(\d+)$/.exec(asked.get("token") || "");
  const node = token && [...document.querySelectorAll(".t, .cell")].find((x) => x.at.r === Number(token[1]) && x.at.i === Number(token[2]));
  if (node) { node.scrollIntoView({ block: "nearest" }); showTip(node, true); }
}

const token = (event) => { const node = event.target.closest && event.target.closest("#rows .t, #rows .cell"); return node && node.at ? node : null; };
document.addEventListener("pointerover", (event) => {
  if (pinned) return;
  const node = token(event);
  if (node) showTip(node, false); else if (current && document.activeElement !== current) hideTip();
});
document.addEventListener("focusin", (event) => { const node = token(event); if (node) showTip(node, false); });
document.addEventListener("click", (event) => {
  const node = token(event);
  if (node) showTip(node, !(pinned && current === node)); else if (!event.target.closest(".tip")) hideTip();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  const node = token(event);
  if (node && event.key.startsWith("Arrow")) {
    event.preventDefault();
    const to = moveFrom(node, event.key);
    if (to) { to.focus({ preventScroll: true }); to.scrollIntoView({ block: "nearest" }); }
  }
});
document.addEventListener("scroll", () => { if (!pinned && current) hideTip(); }, { passive: true });
start();
