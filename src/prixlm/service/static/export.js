// The export form: shows what the format needs, the same as a command, and downloads the file.
import { formatCount, post } from "./http.js";

const form = document.getElementById("export");
const toast = document.getElementById("toast");
const ENDINGS = { quickstatements: "qs.txt" };

function quote(text) {
  return /^[\w.,:\/@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function values() {
  const data = new FormData(form);
  const format = data.get("format");
  const isRdf = format === "nt" || format === "nq";
  const request = {
    format,
    accepted: data.has("accepted"),
    min_confidence: Number(data.get("min_confidence")),
    lang: data.get("lang") || null,
  };
  if (format === "nq") request.star = data.has("star");
  if (isRdf) request.base = data.get("base");
  if (format === "quickstatements") {
    request.references = data.get("references").split("\n").map((line) => line.trim()).filter(Boolean);
  }
  return request;
}

function update() {
  const request = values();
  for (const part of form.querySelectorAll("[data-for]")) {
    part.hidden = !part.dataset.for.split(" ").includes(request.format);
  }
  const words = ["prixlm export WORK", `--format ${request.format}`];
  if (request.accepted) words.push("--accepted");
  if (request.min_confidence) words.push(`--min-confidence ${request.min_confidence}`);
  if (request.lang) words.push(`--lang ${request.lang}`);
  if (request.star) words.push("--star");
  if (request.base && request.base !== "urn:prixlm:") words.push(`--base ${quote(request.base)}`);
  for (const line of request.references ?? []) words.push(`--reference ${quote(line)}`);
  words.push(`--to facts.${ENDINGS[request.format] ?? request.format}`);
  document.getElementById("command").textContent = words.join(" ");
}

form?.addEventListener("input", update);
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  toast.className = "toast";
  toast.textContent = "Writing…";
  try {
    const request = values();
    const response = await post("/api/export", request);
    const content = await response.blob();
    const named = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(content);
    link.download = named?.[1] ?? `facts.${ENDINGS[request.format] ?? request.format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    toast.className = "toast good";
    toast.textContent = `Downloaded ${link.download}, ${formatCount(content.size)} bytes.`;
  } catch (error) {
    toast.className = "toast bad";
    toast.textContent = error.message;
  } finally {
    button.disabled = false;
  }
});
if (form) update();
