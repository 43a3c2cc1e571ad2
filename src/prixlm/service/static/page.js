// What every page has: the theme, the reviewer's name and language, and `/` for the search.

const YEAR = 365 * 24 * 3600;

function setCookie(name, value) {
  document.cookie = `${name}=${encodeURIComponent(value)}; path=/; max-age=${YEAR}; samesite=strict`;
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // Storage may be forbidden: the theme then lasts for this page.
  }
});

const me = document.getElementById("me");
document.getElementById("settings").addEventListener("submit", (event) => {
  event.preventDefault();
  const values = new FormData(event.target);
  const reviewer = values.get("reviewer").trim();
  if (!reviewer) return;
  setCookie("reviewer", reviewer);
  setCookie("ui", values.get("ui"));
  location.reload();
});
document.addEventListener("click", (event) => {
  if (me.open && !me.contains(event.target)) me.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && me.open) {
    me.open = false;
    me.querySelector("summary").focus();
  }
  const isTyping = event.target.closest("input, textarea, select, dialog");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const field = document.getElementById("find") ?? document.getElementById("q");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});
