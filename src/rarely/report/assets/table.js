// The table of all problems: filter, sort, and draw one page of it.
const PER_PAGE = 25;
const table = byId("table");
const state = { sort: "chance", ascending: false, page: 0, shown: rows };

const lowest = rows.reduce((low, row) => Math.min(low, row.low ?? 0, row.log_prob ?? 0), -1);
const place = (log) => 2 + 96 * (1 - Math.max(log, lowest) / lowest);  // 0 to 100, probability one at the right
const onScale = (row) => {
  const drawing = shape("svg", { class: "scale", viewBox: "0 0 100 14", preserveAspectRatio: "none", "aria-hidden": "true" });
  drawing.append(shape("line", { x1: 2, x2: 98, y1: 7, y2: 7, stroke: "var(--line)", "vector-effect": "non-scaling-stroke" }));
  const line = (from, to, color, width) => drawing.append(shape("line", {
    x1: from, x2: Math.max(to, from + 0.5), y1: 7, y2: 7, stroke: color, "stroke-width": width, "vector-effect": "non-scaling-stroke",
  }));
  const color = row.standing === "not to be trusted" ? "var(--warning)" : "var(--accent)";
  if (known(row.log_prob)) {
    line(place(row.low ?? lowest), place(row.high), color, 2);
    line(place(row.log_prob) - 0.9, place(row.log_prob) + 0.9, color, 9);
  } else if (known(row.upper) && row.standing !== "proved safe") {
    line(2, place(row.upper), "var(--faint)", 2);
  }
  return drawing;
};

const several = (name) => new Set(rows.map((row) => row[name])).size > 1;
const filled = (name) => rows.some((row) => known(row[name]) && row[name] !== "");
const opener = (row) => el("button", { type: "button", class: "open", "data-open": row.key, title: row.name }, called(row));
// Where there is no room for a column of its own, the interval stands below the probability.
const chance = (row) => el("span", {}, row.chance ?? "", el("small", { class: "narrow" }, row.between ?? ""));
const columns = [
  { id: "name", title: "Problem", value: called, cell: opener },
  { id: "label", title: "Class", value: (row) => row.label, when: filled("label"), wide: true },
  { id: "radius", title: "Radius", value: (row) => row.radius, text: (row) => known(row.radius) ? short(row.radius) : "", when: several("radius"), right: true, wide: true },
  { id: "standing", title: "Outcome", value: (row) => row.standing, cell: (row) => el("span", {}, standingMark(row.standing), row.standing), tight: true },
  { id: "chance", title: "Probability", value: (row) => row.log_prob, cell: chance, right: true },
  { id: "interval", title: "Interval", value: (row) => row.high ?? null, text: (row) => row.between ?? "", tight: true, wide: true },
  { id: "scale", title: el("span", { class: "ends" }, el("span", {}, scientific(lowest)), el("span", {}, "1")), cell: onScale, wide: true, when: filled("log_prob") },
  { id: "calls", title: "Calls", value: calls, text: (row) => whole(calls(row)), right: true, wide: true },
].filter((column) => column.when !== false);
const look = (column) => [column.right && "right", column.tight && "tight", column.wide && "wide"].filter(Boolean).join(" ");

for (const column of columns) {
  const inside = column.value ? el("button", { type: "button", "data-sort": column.id }, column.title) : column.title;
  table.tHead.rows[0].append(el("th", { scope: "col", class: look(column), "data-column": column.id }, inside));
}

const choices = { standing: byId("by-standing"), network: byId("by-network"), norm: byId("by-norm"), radius: byId("by-radius") };
for (const [name, select] of Object.entries(choices)) {
  const counts = new Map();
  for (const row of rows) if (known(row[name]) && row[name] !== "") counts.set(row[name], (counts.get(row[name]) ?? 0) + 1);
  const values = [...counts.keys()];
  if (name === "radius") values.sort((a, b) => a - b);
  select.append(el("option", { value: "" }, "all"));
  for (const value of values) {
    const text = name === "network" ? data.stems[value] ?? value : value;
    select.append(el("option", { value }, `${text} (${whole(counts.get(value))})`));
  }
  select.parentElement.hidden = values.length < 2;
}

const words = (row) => row.words ??= [row.name, called(row), row.label, row.standing, row.reason, ...(row.notes ?? [])].join("\n").toLowerCase();
const collator = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => typeof a === "string" ? collator.compare(a, b) : a - b;

const select = () => {
  const wanted = byId("find").value.trim().toLowerCase();
  const chosen = Object.entries(choices).filter(([, box]) => box.value !== "");
  state.shown = rows.filter((row) =>
    chosen.every(([name, box]) => String(row[name]) === box.value) && (!wanted || words(row).includes(wanted)));
  if (state.sort === "chance" && !state.ascending) return;  // the rows come worst first
  const { value } = columns.find((column) => column.id === state.sort);
  const sign = state.ascending ? 1 : -1;
  state.shown.sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    if (!known(left) || !known(right)) return known(right) - known(left) || a.rank - b.rank;  // the unknown last
    return sign * compare(left, right) || a.rank - b.rank;
  });
};

const draw = () => {
  const pages = Math.max(1, Math.ceil(state.shown.length / PER_PAGE));
  state.page = Math.min(Math.max(state.page, 0), pages - 1);
  const first = state.page * PER_PAGE;
  const visible = state.shown.slice(first, first + PER_PAGE);
  table.tBodies[0].replaceChildren(...visible.map((row) => el("tr", {}, ...columns.map((column) =>
    el("td", { class: look(column) }, column.cell ? column.cell(row) : (column.text ?? column.value)(row))))));
  for (const head of table.tHead.rows[0].cells) {
    if (head.dataset.column === state.sort) head.setAttribute("aria-sort", state.ascending ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
  const count = state.shown.length;
  byId("showing").textContent = count === 0 ? (rows.length ? "No problem fits these filters." : "There are no problems.")
    : `${whole(first + 1)} to ${whole(first + visible.length)} of ${whole(count)} problems` +
      (count < rows.length ? `, filtered from ${whole(rows.length)}` : "");
  document.querySelector(".pager").hidden = pages < 2;
  byId("page-number").textContent = `Page ${state.page + 1} of ${pages}`;
  byId("previous-page").disabled = state.page === 0;
  byId("next-page").disabled = state.page === pages - 1;
};
const refresh = () => { state.page = 0; select(); draw(); };

table.tHead.addEventListener("click", (event) => {
  const id = event.target.closest("[data-sort]")?.dataset.sort;
  if (!id) return;
  const text = ["name", "label", "standing"].includes(id);
  state.ascending = state.sort === id ? !state.ascending : text;
  state.sort = id;
  refresh();
});
byId("find").addEventListener("input", refresh);
for (const box of Object.values(choices)) box.addEventListener("change", refresh);
byId("clear").addEventListener("click", () => {
  byId("find").value = "";
  for (const box of Object.values(choices)) box.value = "";
  refresh();
});
for (const [id, step] of [["previous-page", -1], ["next-page", 1]]) byId(id).addEventListener("click", () => { state.page += step; draw(); });
for (const link of document.querySelectorAll("[data-standing]")) {
  link.addEventListener("click", () => { choices.standing.value = link.dataset.standing; refresh(); });
}
for (const part of document.querySelectorAll("#problems [hidden]:not(label)")) part.hidden = false;
refresh();
