// Which page is shown, what is told above it, and the keys.

import { compare } from "./compare.js";
import { el, fill } from "./dom.js";
import { count, plural } from "./format.js";
import { overview } from "./overview.js";
import { rollout } from "./rollout.js";
import { rollouts } from "./rollouts.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const troubleBox = document.getElementById("trouble");
const damageBox = document.getElementById("damage");

/** What a page tells above itself. */
const page = {
  about({ directory, damage }) {
    document.getElementById("directory").textContent = directory;
    damageBox.hidden = damage === null;
    if (damage !== null) {
      damageBox.textContent = `Damaged: ${damage.count ? damage.places.slice(0, 3).join("; ") : "bytes that a repair put aside"}${damage.count > 3 ? ` and ${plural(damage.count - 3, "place")} more` : ""} cannot be read${damage.affected ? `; ${plural(damage.affected, "rollout")} may have lost calls there` : ""}. The rest is shown; gym-capture verify names every place.`;
    }
  },
  reading(progress) {
    const busy = progress && progress.read < progress.known;
    live.textContent = busy ? `reading: ${count(progress.read)} of ${plural(progress.known, "rollout")}` : "live";
    live.className = busy ? "busy" : "on";
  },
  trouble(error) {
    troubleBox.hidden = error === null;
    if (error !== null) {
      troubleBox.textContent = error.message;
      live.textContent = "not live";
      live.className = "off";
    } else {
      page.reading(null);
    }
  },
};

let shown = { stop: () => {} };

function route() {
  const hash = location.hash || "#/";
  if (!hash.startsWith("#/")) return;
  shown.stop();
  troubleBox.hidden = true;
  if (live.className === "off") live.textContent = "asking …";
  const [path, asked = ""] = hash.slice(2).split("?");
  const [name, id] = path.split("/");
  document.title = id ? `${decoded(id)} · gym-capture` : "gym-capture";
  for (const link of document.querySelectorAll("nav a")) {
    const is = link.dataset.page === (name === "" ? "overview" : name === "rollout" ? "rollouts" : name);
    if (is) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  if (name === "rollouts") shown = rollouts(main, page, asked);
  else if (name === "rollout" && id) shown = rollout(main, page, decoded(id));
  else if (name === "compare") shown = { stop: compare(main, page, asked) };
  else if (name === "") shown = { stop: overview(main, page) };
  else {
    shown = { stop: () => {} };
    fill(main, el("p", {}, "There is no such page."));
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function move(by) {
  const items = [...main.querySelectorAll("[data-item]")];
  if (!items.length) return false;
  const at = items.indexOf(document.activeElement);
  const to = items[at < 0 ? (by > 0 ? 0 : items.length - 1) : Math.min(items.length - 1, Math.max(0, at + by))];
  to.focus();
  to.scrollIntoView({ block: "nearest" });
  return true;
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  n: () => shown.turn?.(1),
  p: () => shown.turn?.(-1),
  o: () => { location.hash = "#/"; },
  l: () => { location.hash = "#/rollouts"; },
  "/": () => {
    if (shown.search) shown.search.focus();
    else location.hash = "#/rollouts";
  },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest?.("input, select, textarea");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    if (event.key === "Enter" && typing.type === "search") move(1);
    return;
  }
  const arrow = event.key.startsWith("Arrow");
  // Arrows scroll a page without a list, and inside what scrolls by itself.
  if (arrow && (event.target.closest?.("pre") || !main.querySelector(".list [data-item]"))) return;
  const act = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
  if (act) {
    event.preventDefault();
    act();
  }
});

document.addEventListener("click", (event) => {
  // Places of this page are no addresses: the address says which rollout is shown.
  const link = event.target.closest?.('a[href^="#"]:not([href^="#/"])');
  if (!link) return;
  event.preventDefault();
  if (link.id === "skip") main.focus();
  else shown.open?.(Number(link.dataset.call));
});

window.addEventListener("hashchange", route);
route();
