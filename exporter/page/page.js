// Updates the page: fetches it again and changes the shown document node by node, so that unfolded details, focus,
// selection and scroll positions stay. If the exporter does not answer, the page shows that its data is not current.
// Copies commands.
"use strict";

const main = document.getElementById("main");
const PERIOD = 1000 * Number(main.dataset.refresh);
const TIMEOUT = 10000;

let answeredAt = Date.now();
let problem = "";
let next = 0;
let title = document.title;

function update(shown, fresh) {
  if (shown.nodeType !== Node.ELEMENT_NODE) {
    if (shown.data !== fresh.data) shown.data = fresh.data;
    return;
  }
  for (const { name } of [...shown.attributes]) {
    if (!isSetByUser(shown, name) && !fresh.hasAttribute(name)) shown.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (!isSetByUser(shown, name) && shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  }
  updateChildren(shown, fresh);
}

// Whether the user sets this attribute: unfolded details.
function isSetByUser(element, name) {
  return name === "open" && element.localName === "details";
}

function updateChildren(shown, fresh) {
  const freshIds = new Set([...fresh.children].map((child) => child.id).filter(Boolean));
  const known = new Map();
  for (const child of [...shown.children]) {
    if (freshIds.has(child.id)) known.set(child.id, child);
    else if (child.id) child.remove();
  }
  let place = shown.firstChild;
  for (const wanted of fresh.childNodes) {
    const match = wanted.id ? known.get(wanted.id) : isSameKind(place, wanted) ? place : undefined;
    if (match === undefined) {
      shown.insertBefore(document.importNode(wanted, true), place);
      continue;
    }
    if (match === place) place = place.nextSibling;
    else shown.insertBefore(match, place);
    update(match, wanted);
  }
  while (place !== null) {
    const left = place;
    place = place.nextSibling;
    left.remove();
  }
}

function isSameKind(node, wanted) {
  return node !== null && !node.id && node.nodeName === wanted.nodeName;
}

async function refresh() {
  clearTimeout(next);
  try {
    apply(await fetchPage());
    answeredAt = Date.now();
    problem = "";
  } catch (error) {
    problem = error.message;
  }
  showAge();
  if (!document.hidden) next = setTimeout(refresh, PERIOD);
}

async function fetchPage() {
  const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
  if (!answer.ok) throw new Error(`it answers ${answer.status}`);
  const text = await answer.text();
  return new DOMParser().parseFromString(text, "text/html");
}

function apply(fresh) {
  const node = fresh.getElementById("main");
  if (node === null || !node.dataset.now) throw new Error("it no longer shows the node to this browser");
  if (fresh.documentElement.dataset.version !== document.documentElement.dataset.version) location.reload();
  title = fresh.title;
  update(main, node);
}

function showAge() {
  const seconds = Math.max(0, Math.round((Date.now() - answeredAt) / 1000));
  const isStale = problem !== "" || seconds * 1000 > 2 * PERIOD + TIMEOUT;
  document.getElementById("as-of").textContent = `As of ${main.dataset.now}, ${seconds} s ago`;
  document.body.classList.toggle("stale", isStale);
  document.getElementById("stale").hidden = !isStale;
  document.title = isStale ? `Not current: ${title}` : title;
  const why = problem === "" ? "" : ` (${problem})`;
  const words = isStale ? `The exporter has not answered since ${main.dataset.now}${why}.` : "";
  const text = document.getElementById("stale-text");
  if (text.textContent !== words) text.textContent = words;
}

// The clipboard's own interface needs HTTPS, which most exporters do not have.
document.addEventListener("click", ({ target }) => {
  if (!target.matches("button.copy")) return;
  getSelection().selectAllChildren(target.previousElementSibling);
  target.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (target.textContent = "Copy"), 2000);
});

if (main.dataset.now) {
  document.addEventListener("visibilitychange", () => {
    clearTimeout(next);
    showAge();
    if (!document.hidden) refresh();
  });
  setInterval(showAge, 1000);
  next = setTimeout(refresh, PERIOD);
}
