// Keeps the page up to date: fetches it anew, and makes what is shown like it, node by node, so that what is unfolded,
// focused, selected or scrolled stays so. Says, for all to see, when the exporter answers no more.
"use strict";

const main = document.getElementById("main");
const asOf = document.getElementById("as-of");
const stale = document.getElementById("stale");
const PERIOD = 1000 * Number(main.dataset.refresh);
const PATIENCE = 10000;

let answeredAt = Date.now();
let problem = "";
let next = 0;

function settle(shown, fresh) {
  if (shown.nodeType !== Node.ELEMENT_NODE) {
    if (shown.data !== fresh.data) shown.data = fresh.data;
    return;
  }
  for (const { name } of [...shown.attributes]) {
    if (!isTheirs(shown, name) && !fresh.hasAttribute(name)) shown.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (!isTheirs(shown, name) && shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  }
  settleChildren(shown, fresh);
}

// Whether whoever looks decides about it: what is unfolded.
function isTheirs(element, name) {
  return name === "open" && element.localName === "details";
}

function settleChildren(shown, fresh) {
  const staying = new Set([...fresh.children].map((child) => child.id).filter(Boolean));
  const known = new Map();
  for (const child of [...shown.children]) {
    if (staying.has(child.id)) known.set(child.id, child);
    else if (child.id) child.remove();
  }
  let place = shown.firstChild;
  for (const wanted of fresh.childNodes) {
    const match = wanted.id ? known.get(wanted.id) : isAlike(place, wanted) ? place : undefined;
    if (match === undefined) {
      shown.insertBefore(document.importNode(wanted, true), place);
      continue;
    }
    if (match === place) place = place.nextSibling;
    else shown.insertBefore(match, place);
    settle(match, wanted);
  }
  while (place !== null) {
    const left = place;
    place = place.nextSibling;
    left.remove();
  }
}

function isAlike(node, wanted) {
  return node !== null && !node.id && node.nodeName === wanted.nodeName;
}

async function look() {
  clearTimeout(next);
  try {
    take(await fetched());
    answeredAt = Date.now();
    problem = "";
  } catch (error) {
    problem = error.message;
  }
  tell();
  if (!document.hidden) next = setTimeout(look, PERIOD);
}

async function fetched() {
  const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (!answer.ok) throw new Error(`it answers ${answer.status}`);
  const text = await answer.text();
  return new DOMParser().parseFromString(text, "text/html");
}

function take(fresh) {
  const node = fresh.getElementById("main");
  if (node === null || !node.dataset.now) throw new Error("it no longer shows the node to this browser");
  if (fresh.documentElement.dataset.version !== document.documentElement.dataset.version) location.reload();
  document.title = fresh.title;
  settle(main, node);
}

function tell() {
  const seconds = Math.max(0, Math.round((Date.now() - answeredAt) / 1000));
  const isStale = problem !== "" || seconds * 1000 > 2 * PERIOD + PATIENCE;
  asOf.textContent = `As of ${main.dataset.now}, ${seconds} s ago`;
  document.body.classList.toggle("stale", isStale);
  stale.hidden = !isStale;
  if (isStale) {
    const words = `NOT CURRENT: the exporter has not answered since; the data is of ${main.dataset.now}.`;
    const why = problem === "" ? "" : ` (${problem})`;
    if (stale.textContent !== words + why) stale.textContent = words + why;
  }
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(next);
  tell();
  if (!document.hidden) look();
});
setInterval(tell, 1000);
next = setTimeout(look, PERIOD);
