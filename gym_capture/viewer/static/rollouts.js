// The list of rollouts: searched, filtered, sorted and paged by the server.

import { watch } from "./api.js";
import { el, fill } from "./dom.js";
import { bytes, count, gapName, moment, span } from "./format.js";

const LIMIT = 50;
const TYPING_MS = 150;
const COLUMNS = [
  ["rollout", "id"], ["status", null], ["calls", "calls"], ["failed", "errors"], ["open", "open"], ["tokens in", "tokens_in"], ["tokens out", "tokens_out"],
  ["latency", "latency"], ["began", "first"], ["ended", "last"], ["size", "bytes"], ["models", null], ["gaps", null],
];
const WORDS = new Set(["rollout", "status", "began", "ended", "models", "gaps"]);
const FLAGS = [["errors", "failed calls"], ["gaps", "gaps"], ["open", "open claims"]];

export function rollouts(main, page, asked) {
  const query = new URLSearchParams(asked);
  const text = el("input", { type: "search", id: "search", placeholder: "search ids  ( / )", value: query.get("text") ?? "", "aria-label": "Search rollout ids", oninput: () => typed("text", text.value) });
  const model = el("input", { type: "search", id: "model", placeholder: "model", value: query.get("model") ?? "", "aria-label": "Only where such a model answered", oninput: () => typed("model", model.value) });
  const status = el("select", { id: "status", "aria-label": "Only of this status", onchange: () => set("status", status.value) },
    ["", "observed", "open", "incomplete", "unobserved"].map((each) => el("option", { value: each, selected: each === (query.get("status") ?? "") }, each || "any status")));
  const flags = FLAGS.map(([name, label]) => el("label", {}, el("input", { type: "checkbox", id: `only-${name}`, checked: query.get(name) === "1", onchange: (event) => set(name, event.target.checked ? "1" : "") }), ` ${label}`));
  const head = el("thead");
  const body = el("tbody", { id: "rows" });
  const told = el("p", { id: "told", role: "status" });
  const previous = el("button", { type: "button", id: "previous", onclick: () => turn(-1) }, "← previous");
  const next = el("button", { type: "button", id: "next", onclick: () => turn(1) }, "next →");
  fill(main, el("h2", {}, "Rollouts"),
    el("div", { class: "filters", role: "search" }, text, model, status, flags),
    el("div", { class: "pager" }, previous, told, next),
    el("div", { class: "wide" }, el("table", { class: "list", "aria-label": "Rollouts" }, head, body)));

  let stop = () => {};
  let timer = null;
  let matching = 0;

  const offset = () => Number(query.get("offset") ?? 0);

  function set(name, value, keepsPlace = false) {
    if (value) query.set(name, value);
    else query.delete(name);
    if (!keepsPlace) query.delete("offset");
    show();
  }

  function typed(name, value) {
    clearTimeout(timer);
    timer = setTimeout(() => set(name, value), TYPING_MS);
  }

  function turn(by) {
    const to = offset() + by * LIMIT;
    if (to < 0 || (by > 0 && to >= matching)) return;
    set("offset", to ? String(to) : "", true);
  }

  function sortBy(key) {
    const same = (query.get("sort") ?? "id") === key;
    query.set("sort", key);
    // What is worth a sort is mostly the largest.
    const descending = same ? query.get("descending") !== "1" : key !== "id";
    set("descending", descending ? "1" : "");
  }

  function show() {
    const words = query.toString();
    history.replaceState(null, "", `#/rollouts${words ? `?${words}` : ""}`);
    fill(head, el("tr", {}, COLUMNS.map(([name, key]) => {
      const sorted = key !== null && (query.get("sort") ?? "id") === key;
      const direction = query.get("descending") === "1" ? "descending" : "ascending";
      return el("th", { scope: "col", class: WORDS.has(name) ? null : "number", "aria-sort": sorted ? direction : null },
        key === null ? name : el("button", { type: "button", class: "sort", "data-key": `sort/${key}`, onclick: () => sortBy(key) }, name, sorted ? (direction === "descending" ? " ↓" : " ↑") : ""));
    })));
    stop();
    const parameters = new URLSearchParams(query);
    parameters.set("limit", LIMIT);
    stop = watch(`api/rollouts?${parameters}`, (data) => {
      page.about(data.about);
      page.reading(data.reading);
      if (data.page !== null) draw(data.page);
      else told.textContent = "reading the records that this order or filter needs …";
    }, page.trouble);
  }

  function draw(found) {
    matching = found.matching;
    const last = found.offset + found.rows.length;
    told.textContent = `${found.rows.length ? `${count(found.offset + 1)} to ${count(last)}` : "none"} of ${count(found.matching)} rollouts${found.matching === found.known ? "" : ` that fit, ${count(found.known)} known`}`;
    previous.disabled = found.offset === 0;
    next.disabled = last >= found.matching;
    fill(body, found.rows.map(row));
  }

  show();
  return { stop: () => { clearTimeout(timer); stop(); }, turn, search: text };
}

function row(each) {
  const number = (value, cls = "") => el("td", { class: `number ${cls}` }, value);
  return el("tr", {},
    el("th", { scope: "row" }, el("a", { href: `#/rollout/${encodeURIComponent(each.rollout_id)}`, "data-key": each.rollout_id, "data-item": true }, each.rollout_id)),
    el("td", {}, el("span", { class: `status ${each.status}` }, each.status)),
    number(count(each.calls)), number(count(each.failed), each.failed ? "bad" : ""), number(count(each.outstanding)),
    number(count(each.tokens_in)), number(count(each.tokens_out)), number(span(each.latency_sum_ms)),
    el("td", { class: "moment" }, moment(each.first_at)), el("td", { class: "moment" }, moment(each.last_at)), number(bytes(each.stored_bytes)),
    el("td", { class: "names" }, each.models.join(", ")),
    el("td", { class: "names warn" }, each.gaps.map((gap) => gapName(gap.code)).join(", ")));
}
