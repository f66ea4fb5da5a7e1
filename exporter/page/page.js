// Updates the page: fetches it again and changes the shown document node by node, so that unfolded details, focus,
// selection and scroll positions stay. If the exporter does not answer, the page shows that its data is not current.
// Finds and sorts clients, unfolds what a link leads to, shows times in the zone that the visitor chooses, and copies
// commands.
"use strict";

const main = document.getElementById("main");
const PERIOD = 1000 * Number(main.dataset.refresh);
const TIMEOUT = 10000;

const zone = document.querySelector("#zone select");

// The heading of the column by which clients are sorted.
const ORDERS = { sm: "SMs used", memory: "Memory", slowdown: "Slowdown", pid: "PID" };
const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

let answeredAt = Date.now();
let problem = "";
let next = 0;
let turn = 0;
let title = document.title;

function update(shown, fresh) {
  if (shown.id === "find") return;
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
  const freshKeys = new Set([...fresh.children].map(keyOf).filter(Boolean));
  const known = new Map();
  for (const child of [...shown.children]) {
    const key = keyOf(child);
    if (freshKeys.has(key) && !known.has(key)) known.set(key, child);
    else if (key) child.remove();
  }
  let place = shown.firstChild;
  for (const wanted of fresh.childNodes) {
    const key = keyOf(wanted);
    const match = key ? known.get(key) : isSameKind(place, wanted) ? place : undefined;
    known.delete(key);
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

// What identifies a node among its siblings: its id, or of a row what its first link leads to.
function keyOf(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return "";
  return node.id || (node.localName === "tr" && node.querySelector("a")?.getAttribute("href")) || "";
}

function isSameKind(node, wanted) {
  return node !== null && !keyOf(node) && node.nodeName === wanted.nodeName;
}

async function refresh() {
  clearTimeout(next);
  const own = ++turn;
  let found = "";
  try {
    const fresh = await fetchPage();
    if (own === turn) apply(fresh);
  } catch (error) {
    found = error.message;
  }
  // A later refresh has begun meanwhile, and shows what is newer.
  if (own !== turn) return;
  if (found === "") answeredAt = Date.now();
  problem = found;
  showAge();
  if (!document.hidden) next = setTimeout(refresh, PERIOD);
}

async function fetchPage() {
  const options = { cache: "no-store", headers: { Accept: "text/html" }, signal: AbortSignal.timeout(TIMEOUT) };
  const answer = await fetch(location.pathname, options);
  if (!answer.ok) throw new Error(`it answers ${answer.status}`);
  const text = await answer.text();
  return new DOMParser().parseFromString(text, "text/html");
}

function apply(fresh) {
  const node = fresh.getElementById("main");
  if (node === null || !node.dataset.now) throw new Error("it no longer shows the node to this browser");
  if (fresh.documentElement.dataset.version !== document.documentElement.dataset.version) location.reload();
  title = fresh.title;
  localize(fresh, node.dataset.now);
  arrange(node);
  update(main, node);
  showMatches(false);
}

// The tables of clients and processes below an element, with their rows and the positions of their columns.
function* clientTables(root) {
  for (const table of root.querySelectorAll("#clients table")) {
    const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    if (headings.includes("PID")) yield { body: table.tBodies[0], rows: [...table.tBodies[0].rows], headings };
  }
}

// Hides the rows that the filter does not match, and sorts the others.
function arrange(root) {
  const { find, order } = searched();
  for (const { body, rows, headings } of clientTables(root)) {
    for (const row of rows) row.hidden = !matches(find, row, headings);
    if (body.closest("details")) body.closest("details").hidden = rows.every((row) => row.hidden);
    const column = headings.indexOf(ORDERS[order]);
    if (column < 0) continue;
    const value = new Map(rows.map((row) => [row, quantity(row.cells[column].textContent)]));
    const sign = order === "pid" ? 1 : -1;
    const sorted = [...rows].sort((one, other) => sign * (value.get(one) - value.get(other)));
    if (sorted.some((row, number) => row !== rows[number])) body.append(...sorted);
  }
}

function searched() {
  const place = document.getElementById("find");
  return { find: place?.querySelector("input").value ?? "", order: place?.querySelector("select").value ?? "" };
}

// A row matches if each word is in one of its names; a number is there from its first digit on. `GPU 1` is the GPU.
function matches(find, row, headings) {
  const cell = (heading) => row.cells[headings.findIndex((each) => each.startsWith(heading))]?.textContent ?? "";
  const names = ["Process", "PID", "User", "Workload"].map(cell).join(" ").toLowerCase();
  const gpus = cell("GPU").split(", ");
  const words = find.toLowerCase().replace(/\bgpus?[\s:=]*(\d[\d/]*)/g, (_, gpu) => (gpus.includes(gpu) ? "" : "\0"));
  return words.split(/\s+/).every((word) => (/^\d+$/.test(word) ? ` ${names}`.search(`\\D${word}`) >= 0 : names.includes(word)));
}

// The number that a cell shows: bytes, a sum over GPUs, the middle of a range. An empty cell is below all others.
function quantity(text) {
  return text.split(";").reduce((sum, part) => {
    const numbers = part.replace(/±\s*[\d.]+/, "").match(/\d+(\.\d+)?/g) ?? [-1];
    const mean = numbers.reduce((total, each) => total + Number(each), 0) / numbers.length;
    return sum + mean * 1024 ** Math.max(0, UNITS.findIndex((unit) => part.includes(unit)));
  }, 0);
}

// The tables that the filter has unfolded, by their ids.
const unfolded = new Set();

// Unfolds the tables with matches, and counts these. Those that the user has folded again stay so until the next input.
function showMatches(isInput) {
  const place = document.getElementById("find");
  if (place === null) return;
  const rows = [...clientTables(main)].flatMap((table) => table.rows);
  const shown = rows.filter((row) => !row.hidden);
  const isFiltered = searched().find.trim() !== "";
  place.hidden = rows.length === 0;
  place.querySelector("output").textContent = isFiltered ? `${shown.length} of ${rows.length}` : "";
  for (const details of document.querySelectorAll("#clients > details")) {
    if (isFiltered && !details.hidden && (isInput || !unfolded.has(details.id))) {
      if (!details.open) unfolded.add(details.id);
      details.open = true;
    } else if (!isFiltered && unfolded.delete(details.id)) details.open = false;
  }
}

// Applies what the user typed or selected, and writes it into the address of the page.
function search({ target }) {
  const wanted = new URLSearchParams(Object.entries(searched()).filter(([, value]) => value !== ""));
  history.replaceState(null, "", `${location.pathname}${wanted.size ? `?${wanted}` : ""}${location.hash}`);
  arrange(main);
  showMatches(true);
  if (target.localName === "select" && !target.value) refresh();
}

// Shows the controls, which need this script, with the values in the address.
function startSearch() {
  const place = document.getElementById("find");
  if (place === null) return;
  const wanted = new URLSearchParams(location.search);
  place.querySelector("input").value = wanted.get("find") ?? "";
  place.querySelector("select").value = wanted.get("order") ?? "";
  place.addEventListener("input", search);
  arrange(main);
  showMatches(true);
}

// A time is that of the node with its offset, such as 2026-11-21T14:05:03+01:00.
function shownTime(time) {
  const at = new Date(time);
  if (zone.value === "browser") at.setMinutes(at.getMinutes() - at.getTimezoneOffset());
  return (zone.value === "node" ? time : at.toISOString()).slice(0, 19).replace("T", " ");
}

// Shows times in the chosen zone as long as they are: whole, as hours and minutes, or short, with the date if that is
// not today.
function localize(root, now) {
  const today = shownTime(now).slice(0, 11);
  for (const each of root.querySelectorAll("time[datetime]")) {
    if (Number.isNaN(Date.parse(each.dateTime))) continue;
    const time = shownTime(each.dateTime);
    const length = each.textContent.length;
    const short = time.startsWith(today) ? time.slice(11) : time.slice(0, 16);
    const text = length === 19 ? time : length === 5 ? time.slice(11, 16) : short;
    if (each.textContent !== text) each.textContent = text;
  }
  // Prometheus may name this node as the address bar does.
  const name = `?var-instance=${encodeURIComponent(location.host)}&`;
  for (const each of root.querySelectorAll("a[href*='?var-instance=']")) {
    if (!each.search.startsWith(name)) each.search = each.search.replace("?", name);
  }
}

// A browser may refuse to store anything.
function stored() {
  try {
    return localStorage;
  } catch {
    return {};
  }
}

function showAge() {
  const seconds = Math.max(0, Math.round((Date.now() - answeredAt) / 1000));
  const isStale = problem !== "" || seconds * 1000 > 2 * PERIOD + TIMEOUT;
  document.getElementById("as-of").textContent = `As of ${shownTime(main.dataset.now)}, ${seconds} s ago`;
  document.body.classList.toggle("stale", isStale);
  document.getElementById("stale").hidden = !isStale;
  document.title = isStale ? `Not current: ${title}` : title;
  const why = problem === "" ? "" : ` (${problem})`;
  const words = isStale ? `The exporter has not answered since ${shownTime(main.dataset.now)}${why}.` : "";
  const text = document.getElementById("stale-text");
  if (text.textContent !== words) text.textContent = words;
}

// A link to details that are folded unfolds them.
document.addEventListener("click", ({ target }) => {
  unfold(target.closest("a[href^='#']")?.hash);
});
addEventListener("hashchange", () => unfold(location.hash));

function unfold(hash) {
  const details = document.getElementById(hash?.slice(1));
  if (details?.localName === "details") details.open = true;
}

// The clipboard's own interface needs HTTPS, which most exporters do not have.
document.addEventListener("click", ({ target }) => {
  if (!target.matches("button.copy")) return;
  getSelection().selectAllChildren(target.previousElementSibling);
  target.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (target.textContent = "Copy"), 2000);
});

if (main.dataset.now) {
  for (const option of zone.options) option.selected = option.value === stored().zone;
  zone.addEventListener("change", () => {
    stored().zone = zone.value;
    localize(document, main.dataset.now);
    showAge();
  });
  zone.hidden = false;
  zone.previousElementSibling.hidden = true;
  localize(document, main.dataset.now);
  showAge();
  document.addEventListener("visibilitychange", () => {
    clearTimeout(next);
    showAge();
    if (!document.hidden) refresh();
  });
  setInterval(showAge, 1000);
  next = setTimeout(refresh, PERIOD);
  unfold(location.hash);
  startSearch();
}
