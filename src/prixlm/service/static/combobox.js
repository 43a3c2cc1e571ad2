// Suggestions below a text field, after the ARIA combobox pattern: arrows choose, Enter takes.
import { delayed, getJson, nameElement } from "./http.js";

/** Turn the answer of /api/search or /api/relations into options. */
function optionsOf(answer) {
  if (answer.results) {
    return answer.results.map(({ entity, matched, about, description }) => ({
      value: entity.id,
      name: entity.name,
      note: [matched.text === entity.name.text ? "" : matched.text, description?.text ?? about].filter(Boolean).join(" · "),
    }));
  }
  return answer.relations.map(({ key, name }) => ({ value: key, name, note: "" }));
}

const languageOfReader = () => document.getElementById("ui").value;

let number = 0;

/**
 * input: lies in a .combo and has data-suggest, the address to ask. With data-all it has so few
 * options that all of them are offered before anything is typed.
 * parameters(): more query parameters. choose(option or null): called on each change.
 */
export function suggest(input, { parameters = () => ({}), choose }) {
  const list = document.createElement("ul");
  list.id = `suggestions-${++number}`;
  list.role = "listbox";
  list.hidden = true;
  list.setAttribute("aria-label", "Suggestions");
  input.after(list);
  input.role = "combobox";
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-expanded", "false");
  input.setAttribute("aria-controls", list.id);
  let options = [];
  let active = -1;
  let running = null;

  function close() {
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function activate(index) {
    list.children[active]?.setAttribute("aria-selected", "false");
    active = (index + options.length) % options.length;
    const item = list.children[active];
    item.setAttribute("aria-selected", "true");
    item.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", item.id);
  }

  function take(option) {
    input.value = option.name.text;
    close();
    choose(option);
  }

  function show() {
    list.replaceChildren(...options.map((option, index) => {
      const item = document.createElement("li");
      item.role = "option";
      item.id = `${list.id}-${index}`;
      item.setAttribute("aria-selected", "false");
      item.append(nameElement(option.name));
      if (option.note) {
        const note = document.createElement("small");
        note.append(nameElement({ text: option.note, lang: "" }));
        item.append(note);
      }
      // Before the field loses its focus, which closes the list.
      item.addEventListener("mousedown", (event) => {
        event.preventDefault();
        take(option);
      });
      return item;
    }));
    list.hidden = options.length === 0;
    input.setAttribute("aria-expanded", String(options.length > 0));
  }

  const ask = delayed(async () => {
    running?.abort();
    const query = input.value.trim();
    if (!query && !("all" in input.dataset)) return close();
    running = new AbortController();
    const address = new URLSearchParams({ q: query, limit: query ? 8 : 100, ui: languageOfReader(), ...parameters() });
    try {
      options = optionsOf(await getJson(`${input.dataset.suggest}?${address}`, running.signal));
    } catch {
      return close();
    }
    active = -1;
    if (document.activeElement === input) show();
  }, 120);

  input.addEventListener("input", () => {
    choose(null);
    ask();
  });
  if ("all" in input.dataset) input.addEventListener("click", () => list.hidden && ask());
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      event.preventDefault();
      close();
    } else if (list.hidden && event.key === "ArrowDown" && "all" in input.dataset) {
      event.preventDefault();
      ask();
    } else if (!list.hidden && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      activate(event.key === "ArrowDown" ? active + 1 : active < 0 ? -1 : active - 1);
    } else if (event.key === "Enter" && active >= 0) {
      event.preventDefault();
      take(options[active]);
    }
  });
}
