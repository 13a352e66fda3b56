// One rollout: summary, gaps, timeline, conversation.

import { once, watch } from "./api.js";
import { turnView } from "./conversation.js";
import { el, fill } from "./dom.js";
import { bytes, count, gapName, moment, plural, span } from "./format.js";
import { timeline } from "./timeline.js";

const TURNS = 50;

export function rollout(main, page, id) {
  const path = `api/rollouts/${encodeURIComponent(id)}`;
  const summary = el("section", { id: "summary" });
  const line = el("div");
  const turns = el("div", { id: "turns" });
  const waiting = el("div", { id: "waiting" });
  const more = el("button", { type: "button", id: "more", hidden: true, onclick: () => load() }, "more");
  fill(main, el("h2", {}, el("span", { class: "mono" }, id), " ", el("a", { class: "aside", href: `#/compare?left=${encodeURIComponent(id)}` }, "compare with …")),
    summary, line, el("h3", {}, "Conversation"), turns, waiting, more);

  const drawn = new Map();
  let version = 0;
  let loaded = 0;
  let total = 0;
  let generation = null;

  function show(data) {
    page.about(data.about);
    page.reading(null);
    fill(summary, summaryView(data.summary));
    fill(waiting, waitingView(data.waiting));
    if (generation !== data.generation) {
      generation = data.generation;
      fill(turns);
      drawn.clear();
      loaded = 0;
    }
    take(data);
    version += 1;
    // What stands behind the first page is read anew if it was shown.
    if (loaded > TURNS) refreshRest(version);
  }

  async function refreshRest(of) {
    for (let first = TURNS; first < loaded && of === version; first += TURNS) {
      const data = await quietly(`${path}?first=${first}&limit=${TURNS}`);
      if (data !== null && of === version) take(data);
    }
  }

  async function load() {
    more.disabled = true;
    const data = await quietly(`${path}?first=${loaded}&limit=${TURNS}`);
    more.disabled = false;
    if (data !== null) take(data);
  }

  async function quietly(url) {
    try {
      return await once(url);
    } catch (error) {
      page.trouble(error);
      return null;
    }
  }

  /** Put turns into their places. One that is the same stays as it is, opened parts and focus included. */
  function take(data) {
    total = data.count;
    data.turns.forEach((turn, index) => {
      const place = data.first + index;
      const words = JSON.stringify(turn);
      const former = drawn.get(place);
      if (former?.words === words) return;
      const view = turnView(turn, id);
      if (former) former.view.replaceWith(view);
      else turns.append(view);
      drawn.set(place, { words, view });
    });
    for (const [place, { view }] of drawn) {
      if (place >= total) {
        view.remove();
        drawn.delete(place);
      }
    }
    loaded = drawn.size;
    more.hidden = loaded >= total;
    more.textContent = `show more: ${count(loaded)} of ${plural(total, "call")} are here`;
  }

  async function open(call) {
    while (!document.getElementById(`call-${call}`) && loaded < total) {
      const before = loaded;
      await load();
      if (loaded === before) return;
    }
    const view = document.getElementById(`call-${call}`);
    view?.scrollIntoView({ block: "start" });
    view?.focus({ preventScroll: true });
  }

  const stops = [
    watch(`${path}?first=0&limit=${TURNS}`, show, page.trouble),
    watch(`${path}/timeline`, (data) => fill(line, timeline(data, open)), page.trouble),
  ];
  return { stop: () => stops.forEach((each) => each()), open };
}

function summaryView(row) {
  const fact = (name, value, cls = "") => el("div", { class: `tile ${cls}` }, el("dt", {}, name), el("dd", {}, value));
  return [
    el("dl", { class: "tiles" },
      fact("status", el("span", { class: `status ${row.status}` }, row.status)),
      fact("calls", `${count(row.calls)}${row.verifier_calls ? `, ${count(row.verifier_calls)} of verifiers` : ""}`),
      fact("failed", count(row.failed), row.failed ? "bad" : ""),
      fact("damaged", count(row.damaged), row.damaged ? "bad" : ""),
      fact("open claims", count(row.outstanding)),
      fact("tokens in", `${count(row.tokens_in)}${row.cached_tokens === null ? "" : ` (${count(row.cached_tokens)} cached)`}`),
      fact("tokens out", count(row.tokens_out)),
      fact("latency", `${span(row.latency_sum_ms)}, median ${span(row.latency_median_ms)}`, "broad"),
      fact("from, to (UTC)", `${moment(row.first_at)} – ${moment(row.last_at)}`, "broad"),
      fact("generation", count(row.generation)),
      fact("size", bytes(row.stored_bytes)),
      fact("models", row.models.join(", ") || "–")),
    row.gaps.map((gap) => el("p", { class: "warn gap" }, `gap: ${gapName(gap.code)}${gap.detail ? ` (${gap.detail})` : ""}`)),
  ];
}

function waitingView(waiting) {
  return waiting.map((claim) => el("p", { class: "turn waiting" }, `open claim ${claim.model_call_id || "without an id"}, since ${moment(claim.opened_at)}`));
}
