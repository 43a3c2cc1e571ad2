// Requests to the server, and text for people.

export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function checked(response) {
  if (response.ok) return response;
  let detail = `The server answered ${response.status}.`;
  try {
    detail = (await response.json()).detail ?? detail;
  } catch {
    // Not JSON: the status says enough.
  }
  throw new RequestError(String(detail), response.status);
}

async function request(address, options) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server does not answer. Is it still running?", 0);
  }
  return checked(response);
}

export async function getText(address, signal) {
  return (await request(address, { signal })).text();
}

export async function getJson(address, signal) {
  return (await request(address, { signal })).json();
}

export async function post(address, body) {
  return request(address, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

export async function postJson(address, body) {
  return (await post(address, body)).json();
}

/** Replace what an element holds by HTML that our server rendered and escaped. */
export function fill(element, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  element.replaceChildren(template.content);
}

export function formatCount(number) {
  return number.toLocaleString("en");
}

/** The same as `clean` in markup.py: controls, overrides of the direction, invisible tags. */
export function clean(text) {
  return text
    .replaceAll("\u00ad", "")
    .replace(/[\t\n\v\f\r\u0085\u2028\u2029]+/g, " ")
    .replace(/[\u0000-\u001f\u007f-\u009f\u061c\u202a-\u202e\u2066-\u206f\ufff9-\ufffb\ufeff\u{e0000}-\u{e007f}]/gu, "\ufffd");
}

export function delayed(action, milliseconds) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

/** A `<bdi>` with a name, as the server writes it. */
export function nameElement(name, length = 120) {
  const element = document.createElement("bdi");
  element.lang = name.lang;
  element.dir = "auto";
  const text = clean(name.text);
  element.textContent = text.length > length ? `${text.slice(0, length - 1)}…` : text;
  return element;
}
