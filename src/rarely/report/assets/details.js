// Everything known about one problem, built when it is asked for.
const dialog = byId("details");
const body = byId("details-body");
let current = null;

const facts = (pairs) => el("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== "").flatMap(([name, value]) =>
  [el("dt", {}, name), el("dd", {}, value)]));
const grid = (heads, lines) => el("table", {},
  el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
  el("tbody", {}, ...lines.map((line) => el("tr", {}, ...line.map((cell) => el("td", {}, cell))))));
const behind = (heads, lines) => el("details", {}, el("summary", {}, "The numbers behind this chart"), grid(heads, lines));
// Drawn at the size at which they are seen, so that letters have one size on every screen.
const room = () => Math.min(620, document.documentElement.clientWidth - 32);
const label = (x, y, anchor, text) => shape("text", { x, y, "text-anchor": anchor, "font-size": 12 }, text);

const intervalChart = (row) => {
  const tens = (log) => log / Math.LN10;
  const [low, high] = [tens(row.low ?? row.log_prob), tens(row.high)];
  const pad = Math.max(0.5, (high - low) * 0.5);
  const [from, to] = [Math.floor(low - pad), Math.min(0, Math.ceil(high + pad))];
  const width = room();
  const at = (value) => 20 + (width - 40) * (value - from) / (to - from);
  const step = Math.max(1, Math.ceil((to - from) / 6));
  const drawing = shape("svg", { class: "drawing", viewBox: `0 0 ${width} 60`, role: "img" },
    shape("title", {}, `Probability ${row.chance}, ${percent(row.confidence)} interval ${row.between}`),
    shape("line", { x1: 20, x2: width - 20, y1: 36, y2: 36, stroke: "var(--faint)" }));
  for (let tick = from; tick <= to; tick += step) {
    drawing.append(shape("line", { x1: at(tick), x2: at(tick), y1: 33, y2: 39, stroke: "var(--faint)" }),
      label(at(tick), 54, "middle", tick === 0 ? "1" : `1e${tick}`));
  }
  const color = row.standing === "not to be trusted" ? "var(--warning)" : "var(--accent)";
  drawing.append(shape("line", { x1: at(low), x2: at(high), y1: 18, y2: 18, stroke: color, "stroke-width": 4, "stroke-linecap": "round" }),
    shape("circle", { cx: at(tens(row.log_prob)), cy: 18, r: 7, fill: color }));
  return drawing;
};

const levelChart = (row) => {
  const levels = row.levels.map((level, i) => [i + 1, level]).filter(([, level]) => known(level));
  if (levels.length < 2) return null;
  const count = Math.max(row.levels.length, row.acceptance.length);
  const low = Math.min(...levels.map(([, level]) => level)), high = Math.max(0, ...levels.map(([, level]) => level));
  const [left, right] = [50, room() - 10];
  const x = (number) => left + (right - left) * (number - 0.5) / count;
  const y = (level) => 20 + 140 * (high - level) / (high - low || 1);
  const drawing = shape("svg", { class: "drawing", viewBox: `0 0 ${room()} 290`, role: "img" },
    shape("title", {}, "Levels and acceptance"),
    shape("desc", {}, `${levels.length} levels rise from ${short(low)} to ${short(levels.at(-1)[1])}; a violation begins at 0. ` +
      "Bars show the share of moves that the kernel accepted at each level."),
    shape("line", { x1: left, x2: right, y1: y(0), y2: y(0), stroke: "var(--warning)" }),
    label(right, y(0) - 6, "end", "violation"), label(left - 8, y(0) + 4, "end", "0"),
    label(left - 8, y(low) + 4, "end", short(low, 3)),
    shape("polyline", { points: levels.map(([i, level]) => `${x(i)},${y(level)}`).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 2 }));
  for (const [i, level] of levels) if (count <= 80) drawing.append(shape("circle", { cx: x(i), cy: y(level), r: 3.5, fill: "var(--accent)" }));
  drawing.append(label(left - 8, 196, "end", "1"), label(left - 8, 266, "end", "0"), label(left, 184, "start", "acceptance at each level"),
    shape("line", { x1: left, x2: right, y1: 262, y2: 262, stroke: "var(--faint)" }));
  row.acceptance.forEach((share, i) => {
    const width = Math.max(1, (right - left) / count * 0.7);
    if (known(share)) drawing.append(shape("rect", { x: x(i + 1) - width / 2, y: 262 - 70 * share, width, height: 70 * share, fill: "var(--faint)" }));
  });
  drawing.append(label(x(1), 282, "middle", "1"), label(x(count), 282, "middle", `level ${count}`));
  return drawing;
};

const build = (row) => {
  const parts = [el("h2", { id: "details-title", tabindex: "-1" }, called(row)),
    el("p", {}, standingMark(row.standing), el("b", {}, row.standing), `. ${data.standings[row.standing]}`)];
  if (row.reason) parts.push(el("h3", {}, "Why it failed"), el("pre", { class: "reason" }, row.reason));
  if (row.chance) parts.push(el("p", { class: "chance" }, `p ${row.chance.startsWith("≤") ? "" : "= "}${row.chance}`));
  if (known(row.log_prob)) parts.push(el("p", { class: "hint" }, `${percent(row.confidence)} interval ${row.between}`), intervalChart(row));
  else if (row.chance) parts.push(el("p", { class: "hint" }, row.between));
  const picture = byId(`witness-${row.key}`);
  if (picture) {
    const inside = picture.content ?? picture;
    parts.push(el("h3", {}, "An input that violates"), ...[...inside.children].map((child) => child.cloneNode(true)));
  }
  const levels = row.levels ? levelChart(row) : null;
  if (levels) {
    const lines = Array.from({ length: Math.max(row.levels.length, row.acceptance.length) }, (_, i) =>
      [String(i + 1), short(row.levels[i]), short(row.acceptance[i], 3)]);
    parts.push(el("h3", {}, "How the sampler climbed"), levels, behind(["level", "score", "acceptance"], lines));
  }
  if (row.evidence?.length) {
    const lines = row.evidence.map(([method, said, cost]) => [method, said, cost ? whole(cost) : ""]);
    parts.push(el("h3", {}, "The evidence"), grid(["method", "what it learnt", "calls"], lines));
  }
  if (row.notes?.length) parts.push(el("h3", {}, "Notes"), el("ul", {}, ...row.notes.map((note) => el("li", {}, note))));
  parts.push(el("h3", {}, "Facts"), facts([
    ["name", row.name], ["network", row.network], ["item", row.item], ["class", row.label], ["norm", row.norm], ["radius", known(row.radius) ? short(row.radius, 6) : ""],
    ["replicate", String(row.replicate)], ["log p", known(row.log_prob) ? `${row.log_prob.toFixed(3)} ± ${known(row.std) ? row.std.toFixed(3) : "?"}` : ""],
    ["upper bound", known(row.upper) && row.standing !== "proved safe" ? `p ≤ ${scientific(row.upper)} at ${percent(row.confidence)}` : ""],
    ["proved", row.proved || ""],
    ["network calls", known(row.evaluations) ? `${whole(calls(row))} (${whole(row.evaluations)} evaluations, ${whole(row.gradients)} gradients)` : ""],
    ["seconds of its batch", known(row.seconds) ? row.seconds.toFixed(2) : ""], ["attempts", String(row.attempts)], ["key", row.key],
  ]));
  return parts;
};

const show = (row) => {
  current = row;
  body.replaceChildren(...build(row));
  const index = state.shown.indexOf(row);
  byId("previous-problem").disabled = index <= 0;
  byId("next-problem").disabled = index < 0 || index === state.shown.length - 1;
  history.replaceState(null, "", `#problem-${row.key}`);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  byId("details-title").focus();
};
const walk = (step) => { const next = state.shown[state.shown.indexOf(current) + step]; if (next) show(next); };
const find = (key) => rows.find((row) => row.key === key);

document.addEventListener("click", (event) => {
  const key = event.target.closest("[data-open]")?.dataset.open;
  if (key) show(find(key));
});
byId("previous-problem").addEventListener("click", () => walk(-1));
byId("next-problem").addEventListener("click", () => walk(1));
byId("close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => {
  if (event.target === dialog && event.clientX < dialog.getBoundingClientRect().left) dialog.close();  // beside the panel
});
dialog.addEventListener("close", () => history.replaceState(null, "", location.href.split("#")[0]));
const linked = find(location.hash.replace("#problem-", ""));
if (linked) show(linked);
