// The run as a whole.

import { watch } from "./api.js";
import { el, fill } from "./dom.js";
import { bytes, count, gapName, moment, plural, short } from "./format.js";
import { byName, overTime, spread } from "./plots.js";

export function overview(main, page) {
  const parts = el("div", { class: "overview" });
  fill(main, el("h2", {}, "Overview"), parts);
  return watch("api/run", (data) => {
    page.about(data.about);
    page.reading(data.reading);
    fill(parts, tiles(data), plots(data));
  }, page.trouble);
}

function tiles({ run, claims_open: open }) {
  const tile = (name, value, more, cls = "") => el("div", { class: `tile ${cls}` }, el("dt", {}, name), el("dd", {}, value, more ? el("small", {}, more) : null));
  const missing = Object.values(run.gaps).reduce((sum, each) => sum + each, 0);
  return el("dl", { class: "tiles" },
    tile("rollouts", count(run.rollouts)),
    tile("calls", count(run.calls), run.late ? `${count(run.late)} late` : ""),
    tile("failed", count(run.failed), "", run.failed ? "bad" : ""),
    tile("damaged", count(run.damaged), "", run.damaged ? "bad" : ""),
    tile("open claims", count(open)),
    tile("gaps", count(missing), "", missing ? "warn" : ""),
    tile("tokens in", short(run.tokens_in), run.cached_tokens === null ? "" : `${short(run.cached_tokens)} cached`),
    tile("tokens out", short(run.tokens_out)),
    tile("in the log", bytes(run.stored_bytes)));
}

function plots({ run, claims, claims_open: open }) {
  return el("div", { class: "plots" },
    overTime("Calls over time", run.over_time, [["calls", "answered", ([calls, failed]) => calls - failed], ["failed", "failed", ([, failed]) => failed]]),
    overTime("Tokens over time", run.over_time, [["tokens-in", "in", (bin) => bin[2]], ["tokens-out", "out", (bin) => bin[3]]]),
    spread("Latency", run.latency_ms),
    spread("Time to first token", run.ttft_ms),
    byName("Rollouts by status", run.statuses, "calls", "No rollout yet.", { link: (status) => `#/rollouts?status=${encodeURIComponent(status)}` }),
    byName("Errors by category", run.errors, "failed", run.failed === null ? "No call can be read." : "No call failed.", { link: () => "#/rollouts?errors=1&sort=errors&descending=1" }),
    byName("Rollouts with gaps", run.gaps, "gaps", "Nothing is known to be missing.", { name: gapName, link: () => "#/rollouts?gaps=1" }),
    byName("Rollouts by model", run.models, "calls", "No model answered yet.", { link: (model) => `#/rollouts?model=${encodeURIComponent(model)}` }),
    oldest(claims, open));
}

function oldest(claims, open) {
  return el("figure", { class: "plot" }, el("figcaption", {}, "Oldest open claims"), claims.length
    ? el("table", { class: "bars" }, el("tbody", {}, claims.slice(0, 8).map((claim) => el("tr", {},
      el("th", { scope: "row" }, el("a", { href: `#/rollout/${encodeURIComponent(claim.rollout_id)}`, "data-key": `claim/${claim.rollout_id}` }, claim.rollout_id)),
      el("td", { class: "mono" }, claim.model_call_id || "without an id"),
      el("td", { class: "number" }, `since ${moment(claim.opened_at)}`)))))
    : el("p", { class: "none" }, "No claim is open."),
  open > 8 ? el("p", { class: "note" }, `${plural(open, "claim")} in all; `, el("a", { href: "#/rollouts?open=1&sort=open&descending=1" }, "their rollouts")) : null);
}
