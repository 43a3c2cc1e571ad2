// The review queue: keys, marks, undo, and the next card ready before it is asked for.
//
// The server renders the cards (/review/card), so that a proposal looks the same with and without
// JavaScript. A mark is sent at once and the next card shown meanwhile; if the mark was not saved,
// its card comes back with the reason.
import { suggest } from "./combobox.js";
import { delayed, fill, formatCount, getText, postJson } from "./http.js";

const EVIDENCE_MS = 1500; // between two looks for evidence that is still loading
const DONE = { accept: "Accepted", reject: "Rejected", skip: "Skipped" };

const holder = document.getElementById("card");
const toast = document.getElementById("toast");
const help = document.getElementById("help");
const bulk = document.getElementById("bulk");
const bulkBody = document.getElementById("bulk-body");

const parameters = new URLSearchParams(location.search);
parameters.delete("id");

const ready = new Map(); // id -> promise of the HTML of its card
const shown = []; // ids that were shown, in order; `j` and `k` walk on it
const said = new Map(); // id -> what was done with it on this page, in order
let position = -1;
let waiting = 0; // timer of the look for evidence
let isMoving = false; // no key may mark a card that is not yet seen
let saving = Promise.resolve(); // one mark is saved at a time

const card = () => holder.querySelector("article");

function address(page, more = {}) {
  const query = new URLSearchParams(parameters);
  for (const [key, value] of Object.entries(more)) query.set(key, value);
  return `${page}?${query}`;
}

function say(text, tone = "", hint = "") {
  toast.className = `toast ${tone}`;
  toast.textContent = text;
  if (hint) {
    const more = document.createElement("span");
    more.className = "visually-hidden";
    more.textContent = ` ${hint}`;
    toast.append(more);
  }
}

/** The proposal as a sentence, cut to a length that can be read out; with another value instead. */
function statement(article = card(), instead = "") {
  const spans = [...(article?.querySelectorAll("#statement > span") ?? [])];
  const parts = spans.map((part) => part.textContent.trim().slice(0, 80));
  return instead ? `${parts[0]} ${parts[1]} ${instead}, instead of ${parts[2]}` : parts.join(" ");
}

function fetchCard(id) {
  if (!ready.has(id)) {
    const html = getText(address("/review/card", id ? { id } : {}));
    ready.set(id, html);
    html.catch(() => ready.delete(id));
  }
  return ready.get(id);
}

function prefetch() {
  const next = card()?.dataset.next;
  if (next) fetchCard(next).catch(() => {});
}

/** Show the card of an id, or the first of the queue. */
async function show(id = "") {
  isMoving = true;
  try {
    const html = await fetchCard(id);
    ready.delete(id);
    const focused = holder.contains(document.activeElement) ? document.activeElement : null;
    fill(holder, html);
    const article = card();
    const shownId = article?.dataset.id ?? "";
    history.replaceState(null, "", address("/review", shownId ? { id: shownId } : {}));
    if (focused) {
      // Whoever works with Tab and Enter stays on the same button.
      const { mark, do: action } = focused.dataset;
      const same = mark ? `[data-mark="${mark}"]` : action ? `[data-do="${action}"]` : "#statement";
      (holder.querySelector(same) ?? document.getElementById("main")).focus({ preventScroll: true });
    }
    if (scrollY > 200) scrollTo({ top: 0 });
    arrange();
    prefetch();
    awaitEvidence();
    return shownId;
  } finally {
    isMoving = false;
  }
}

/** While the models load, look again for the evidence of the card; nothing else of it changes. */
function awaitEvidence() {
  clearTimeout(waiting);
  const article = card();
  if (article?.querySelector("#support")?.dataset.pending === undefined) return;
  waiting = setTimeout(async () => {
    try {
      const template = document.createElement("template");
      template.innerHTML = await getText(address("/review/card", { id: article.dataset.id }));
      const fresh = template.content.getElementById("support");
      if (card() !== article) return;
      if (fresh && fresh.dataset.pending === undefined) {
        article.querySelector("#support").replaceWith(fresh);
        ready.clear(); // the next card was fetched without its evidence
        prefetch();
        return;
      }
    } catch {
      // The next look or the next mark tells that the server is gone.
    }
    if (card() === article) awaitEvidence();
  }, EVIDENCE_MS);
}

function remember(id) {
  if (!id || shown[position] === id) return;
  shown.splice(position + 1, shown.length, id);
  position = shown.length - 1;
}

async function move(step) {
  await saving;
  if (isMoving) return;
  const { next, previous } = card()?.dataset ?? {};
  const inHistory = shown[position + step];
  const id = inHistory ?? (step > 0 ? next : previous);
  if (!id) return say(step > 0 ? "This is the last of the filter." : "This is the first.");
  try {
    await show(id);
  } catch (error) {
    return say(error.message, "bad");
  }
  if (inHistory) position += step;
  else if (step > 0) remember(id);
  else shown.splice(position, 0, id);
  const past = said.get(id)?.at(-1);
  say(past ? `${DONE[past]} before.` : "", "", statement());
}

async function mark(verdict, replacement = null, instead = "") {
  const article = card();
  if (!article || isMoving) return;
  await saving; // a key that comes early waits; if its card has gone, it is dropped
  if (card() !== article || isMoving) return;
  isMoving = true;
  saving = save(article, { id: article.dataset.id, verdict, replacement }, instead);
}

/** Send a mark and show the next card meanwhile; never rejects. */
async function save(article, request, instead) {
  const { id, verdict } = request;
  const sentence = statement(article, instead);
  const kept = [...holder.childNodes]; // to come back, also when the server is gone
  const saved = postJson("/api/marks", request);
  const { next } = article.dataset;
  const showing = next ? show(next).then(remember) : Promise.resolve();
  try {
    await Promise.all([showing, saved]);
    if (!next) {
      ready.clear();
      remember(await show());
    }
    said.set(id, [...(said.get(id) ?? []), verdict]);
    say(`${DONE[verdict]}: ${sentence}.`, verdict === "accept" ? "good" : "", `Next: ${statement()}`);
    refresh();
  } catch (error) {
    await Promise.allSettled([saved, showing]);
    ready.clear();
    holder.replaceChildren(...kept);
    history.replaceState(null, "", address("/review", { id }));
    position = Math.max(shown.lastIndexOf(id), 0);
    isMoving = false;
    say(`Not saved: ${error.message}`, "bad");
  }
}

async function undo() {
  await saving;
  if (isMoving) return;
  isMoving = true;
  try {
    const { undone, ids } = await postJson("/api/undo", {});
    if (!undone) return say("You have no mark to undo.");
    ready.clear();
    remember(await show(ids[0]));
    const past = DONE[ids.map((id) => said.get(id)?.pop())[0]];
    if (undone > 1) say(`Undone: ${formatCount(undone)} marks that were made at once.`);
    else say(past ? `No longer ${past.toLowerCase()}: ${statement()}.` : `Undone: your mark on ${statement()}.`);
    refresh();
  } catch (error) {
    say(`Not undone: ${error.message}`, "bad");
  } finally {
    isMoving = false;
  }
}

/** Counts and confidences follow the marks, once the reviewer pauses. */
const refresh = delayed(async () => {
  try {
    const template = document.createElement("template");
    template.innerHTML = await getText(address("/review/facets"));
    for (const id of ["facets", "queue"]) {
      const old = document.getElementById(id);
      const fresh = template.content.getElementById(id);
      const focused = old.contains(document.activeElement) ? document.activeElement : null;
      if (focused?.matches("input")) continue;
      const open = [...old.querySelectorAll("details")].map((details) => details.open);
      old.replaceChildren(...fresh.childNodes);
      old.querySelectorAll("details").forEach((details, i) => (details.open = open[i] ?? false));
      const place = focused?.id ? `#${focused.id}` : `[href="${CSS.escape(focused?.getAttribute("href") ?? "")}"]`;
      if (focused) old.querySelector(place)?.focus({ preventScroll: true });
    }
    reveal();
    const id = card()?.dataset.id;
    if (!id) return;
    template.innerHTML = await getText(address("/review/card", { id }));
    if (card()?.dataset.id !== id) return;
    for (const part of [".trust", ".meta"]) {
      const fresh = template.content.querySelector(part);
      if (fresh) card().querySelector(part).replaceWith(fresh);
    }
    card().dataset.next = template.content.querySelector("article")?.dataset.next ?? "";
    ready.clear();
    prefetch();
  } catch {
    // The next mark tells that the server is gone.
  }
}, 500);

function toggleEdit() {
  const form = document.getElementById("edit");
  if (!form) return;
  form.hidden = !form.hidden;
  holder.querySelector('[data-do="edit"]').setAttribute("aria-expanded", String(!form.hidden));
  if (form.hidden) holder.querySelector('[data-do="edit"]').focus();
  else {
    const field = form.querySelector("input");
    field.focus();
    if (field.name === "text") field.select();
  }
}

/** Make the edit form of a new card work. */
function arrange() {
  const form = document.getElementById("edit");
  if (!form) return;
  const field = form.querySelector("input");
  const button = form.querySelector("button");
  let chosen = null;
  if (field.dataset.suggest) {
    suggest(field, {
      choose: (option) => {
        chosen = option;
        button.disabled = !option;
      },
    });
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.name === "text") {
      const text = field.value.trim();
      if (!text) return;
      const isSame = text === field.defaultValue.trim();
      mark("accept", isSame ? null : { text }, isSame ? "" : text);
    } else if (chosen) mark("accept", { entity: chosen.value }, chosen.name.text.slice(0, 80));
  });
}

function pick(button) {
  const name = button.querySelector("bdi").textContent.slice(0, 80);
  mark("accept", { entity: button.dataset.pick }, name);
}

async function showBulk() {
  const seed = Math.floor(Math.random() * 1e9);
  try {
    fill(bulkBody, await getText(address("/review/sample", { seed })));
  } catch (error) {
    return say(error.message, "bad");
  }
  if (!bulk.open) bulk.showModal();
}

function filterValues() {
  const filter = {};
  for (const [key, value] of parameters) {
    if (["order", "ui"].includes(key) || value === "") continue;
    filter[key] = key.endsWith("_confidence") ? Number(value) : value;
  }
  return filter;
}

async function markAll(button) {
  const note = document.getElementById("bulk-toast");
  const verdict = button.dataset.bulk;
  const buttons = bulk.querySelectorAll("button");
  buttons.forEach((one) => (one.disabled = true));
  note.textContent = "Saving…";
  try {
    const expected = Number(button.dataset.expected);
    const answer = await postJson("/api/marks/bulk", { filter: filterValues(), verdict, expected });
    bulk.close();
    ready.clear();
    remember(await show());
    say(`${DONE[verdict]} ${formatCount(answer.marked)} proposals. Undo takes all of them back.`, "good");
    refresh();
  } catch (error) {
    if (error.status === 409) await showBulk();
    const again = document.getElementById("bulk-toast");
    again.className = "toast bad";
    again.textContent = error.message;
    bulk.querySelectorAll("button").forEach((one) => (one.disabled = false));
  }
}

/** Long facets get a field that narrows them. */
function narrowFacets() {
  for (const details of document.querySelectorAll("#facets details")) {
    const items = [...details.querySelectorAll("li")];
    if (items.length < 25) continue;
    const field = document.createElement("input");
    field.type = "search";
    field.placeholder = "Narrow the list";
    field.setAttribute("aria-label", "Narrow the list");
    field.addEventListener("input", () => {
      const wanted = field.value.trim().toLowerCase();
      for (const item of items) item.hidden = !item.textContent.toLowerCase().includes(wanted);
    });
    details.querySelector("summary").after(field);
  }
}

function reveal() {
  for (const id of ["open-bulk", "open-help"]) document.getElementById(id).hidden = false;
  narrowFacets();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const { mark: verdict, do: action, pick: instead, bulk: all } = button.dataset;
  if (verdict) mark(verdict);
  else if (instead) pick(button);
  else if (all) markAll(button);
  else if (action === "edit") toggleEdit();
  else if (action === "undo") undo();
  else if (action === "another") showBulk();
  else if (action === "close") bulk.close();
  else if (button.id === "open-bulk") showBulk();
  else if (button.id === "open-help") help.showModal();
});

const KEYS = {
  a: () => mark("accept"),
  r: () => mark("reject"),
  s: () => mark("skip"),
  e: toggleEdit,
  u: undo,
  j: () => move(1),
  k: () => move(-1),
  "?": () => help.showModal(),
};

/** The letter of a key; by its place on the keyboard if that types another script. */
function letterOf(event) {
  if (/^[\x20-\x7e]$/.test(event.key)) return event.key.toLowerCase();
  return /^Key[A-Z]$/.test(event.code) ? event.code.slice(3).toLowerCase() : event.key;
}

const useKeys = document.getElementById("use-keys");
try {
  useKeys.checked = localStorage.getItem("keys") !== "off";
  useKeys.addEventListener("change", () => {
    localStorage.setItem("keys", useKeys.checked ? "on" : "off");
  });
} catch {
  // Storage may be forbidden: the choice then lasts for this page.
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const { target } = event;
  if (event.key === "Escape") {
    if (target.closest("#edit")) toggleEdit();
    else if (location.hash === "#facets") location.hash = "main";
    return;
  }
  if (target.closest("input, textarea, select") || document.querySelector("dialog[open]")) return;
  const letter = letterOf(event);
  if (!useKeys.checked && letter !== "?") return;
  const action = KEYS[letter];
  if (action) {
    event.preventDefault();
    if (!event.repeat || letter === "j" || letter === "k") action();
  } else if (/^[1-9]$/.test(letter) && !event.repeat) {
    const button = holder.querySelector(`[data-key="${letter}"]`);
    if (button) pick(button);
  }
});

reveal();
arrange();
remember(card()?.dataset.id);
prefetch();
awaitEvidence();
