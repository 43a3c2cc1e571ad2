// Results while typing; the form itself works without this.
import { delayed, fill, getText } from "./http.js";

const form = document.getElementById("search");
const results = document.getElementById("results");
let running = null;

async function update() {
  running?.abort();
  running = new AbortController();
  const query = new URLSearchParams(new FormData(form));
  try {
    fill(results, await getText(`/search/results?${query}`, running.signal));
    history.replaceState(null, "", `/search?${query}`);
  } catch {
    // A newer search runs, or the server is gone: the results stay.
  }
}

form.addEventListener("input", delayed(update, 100));
