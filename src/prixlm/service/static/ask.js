// Suggestions for subject and relation, and a pasted list of names to link.
import { suggest } from "./combobox.js";
import { fill, post } from "./http.js";

for (const input of document.querySelectorAll("[data-suggest]")) {
  const target = document.getElementById(input.dataset.fills);
  suggest(input, {
    parameters: () => {
      const lang = document.getElementById("lang").value;
      return input.dataset.fills ? {} : { lang };
    },
    choose: (option) => {
      if (target) target.value = option?.value ?? "";
    },
  });
}

const answers = document.getElementById("answers");

function offerCopy() {
  const button = document.getElementById("copy");
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", async () => {
    const rows = [...document.querySelectorAll("#linked tr")].map((row) =>
      [...row.cells].slice(0, 4).map((cell) => (cell.dataset.copy ?? cell.textContent).trim().replace(/\s+/g, " ")).join("\t"));
    try {
      await navigator.clipboard.writeText(rows.join("\n"));
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser does not allow it";
    }
  });
}

/** Link names part by part; the table grows with each answer. */
async function linkAll(mentions, lang, size, progress) {
  for (let start = 0; start < mentions.length; start += size) {
    const response = await post("/ask/link", { mentions: mentions.slice(start, start + size), lang });
    if (start === 0) fill(answers, await response.text());
    else {
      const template = document.createElement("template");
      template.innerHTML = await response.text();
      document.querySelector("#linked tbody").append(...template.content.querySelectorAll("#linked tbody tr"));
    }
    const num_done = Math.min(start + size, mentions.length);
    const num_matched = document.querySelectorAll("#linked .accepted").length;
    document.getElementById("answers-title").textContent = `${num_done} names, ${num_matched} matched`;
    progress(num_done);
  }
}

document.getElementById("ask-link")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const values = new FormData(form);
  const mentions = values.get("mention").split("\n").map((line) => line.trim()).filter(Boolean)
    .slice(0, Number(form.dataset.most));
  const button = form.querySelector("button");
  const title = button.textContent;
  button.disabled = true;
  try {
    await linkAll(mentions, values.get("lang") || null, Number(form.dataset.part), (done) => {
      if (done < mentions.length) button.textContent = `${done} of ${mentions.length}…`;
    });
    offerCopy();
  } catch (error) {
    const problem = document.createElement("p");
    problem.className = "notice bad";
    problem.textContent = error.message;
    answers.prepend(problem);
  } finally {
    button.disabled = false;
    button.textContent = title;
  }
});

offerCopy();
