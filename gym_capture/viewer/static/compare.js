// Two rollouts side by side.

import { once, watch } from "./api.js";
import { turnView } from "./conversation.js";
import { el, fill } from "./dom.js";
import { count, span } from "./format.js";

export function compare(main, page, asked) {
  const query = new URLSearchParams(asked);
  const input = (name) => el("input", { type: "text", id: name, value: query.get(name) ?? "", "aria-label": `${name} rollout`, placeholder: `${name} rollout id`, spellcheck: "false" });
  const [left, right] = [input("left"), input("right")];
  const found = el("div", { id: "difference" });
  const form = el("form", { class: "filters", onsubmit: (event) => {
    event.preventDefault();
    location.hash = `#/compare?${new URLSearchParams({ left: left.value.trim(), right: right.value.trim() })}`;
  } }, left, right, el("button", { type: "submit" }, "compare"));
  fill(main, el("h2", {}, "Compare"), form, found);
  if (!query.get("left") || !query.get("right")) {
    (query.get("left") ? right : left).focus();
    return () => {};
  }
  const sides = { left: query.get("left"), right: query.get("right") };
  return watch(`api/difference?${new URLSearchParams(sides)}`, (data) => {
    page.about(data.about);
    page.reading(null);
    fill(found, differenceView(data));
  }, page.trouble);
}

function differenceView(data) {
  const value = (name, each) => each === null ? "–" : name.endsWith("_ms") ? span(each) : count(each);
  return [
    el("p", { class: data.same ? "good" : "warn", id: "verdict" }, data.same ? "The same: every request and every answer." : `They differ from place ${data.parts_at} on.`),
    el("table", { class: "totals" }, el("thead", {}, el("tr", {}, ["", data.left, data.right].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, data.totals.map((change) => el("tr", { class: change.left === change.right ? "" : "differs" }, el("th", { scope: "row" }, change.name.replace(/_ms$/, "").replaceAll("_", " ")),
        el("td", { class: "number" }, value(change.name, change.left)), el("td", { class: "number" }, value(change.name, change.right)))))),
    el("div", { class: "wide" }, el("table", { class: "list", "aria-label": "Calls of both" },
      el("thead", {}, el("tr", {}, ["call", "request", "answer", "tokens in", "tokens out", "latency", "differs in", ""].map((name) => el("th", { scope: "col", class: /^(tokens|latency)/.test(name) ? "number" : null }, name)))),
      el("tbody", {}, data.pairs.flatMap((pair) => pairRows(pair, data))))),
    data.left_out ? el("p", { class: "note" }, `${count(data.left_out)} places more`) : null,
  ];
}

function pairRows(pair, data) {
  const more = (value) => value === null ? "–" : `${value > 0 ? "+" : ""}${count(value)}`;
  const same = (is) => el("td", { class: is ? "good" : "warn" }, is ? "same" : "differs");
  const both = el("td", { colspan: 8, class: "both" });
  const under = el("tr", { hidden: true }, both);
  const button = el("button", { type: "button", "aria-expanded": "false", "data-key": `pair/${pair.place}`, onclick: open }, "both");
  async function open() {
    under.hidden = !under.hidden;
    button.setAttribute("aria-expanded", String(!under.hidden));
    if (under.hidden) return;
    try {
      const sides = await Promise.all([data.left, data.right].map((id) => once(`api/rollouts/${encodeURIComponent(id)}?first=${pair.place}&limit=1`)));
      fill(both, el("div", { class: "sides" }, sides.map((each) => el("div", {}, each.turns.length ? turnView(each.turns[0], each.rollout_id) : el("p", { class: "none" }, "has ended")))));
    } catch (error) {
      fill(both, el("p", { class: "bad" }, error.message));
    }
  }
  const cells = pair.left === null || pair.right === null
    ? [el("td", { colspan: 6, class: "warn" }, `only in ${pair.left === null ? data.right : data.left}`)]
    : [same(pair.same_request), same(pair.same_answer), el("td", { class: "number" }, more(pair.tokens_in)), el("td", { class: "number" }, more(pair.tokens_out)),
      el("td", { class: "number" }, pair.latency_ms === null ? "–" : `${pair.latency_ms > 0 ? "+" : ""}${span(pair.latency_ms)}`),
      el("td", { class: "names" }, pair.changes.map((change) => `${change.name}: ${change.left ?? "–"} → ${change.right ?? "–"}`).join("; "))];
  const name = pair.left === pair.right ? String(pair.place) : `${pair.left ?? "–"} / ${pair.right ?? "–"}`;
  return [el("tr", {}, el("th", { scope: "row" }, name), cells, el("td", {}, button)), under];
}
