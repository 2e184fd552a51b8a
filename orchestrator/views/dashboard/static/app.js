// Fetches parts that take a while to draw, keeps the marked element as the server sends it, lets a log grow, counts the
// chosen runs, lets charts choose them, and listens to keys. Nothing is ever run from data.
"use strict";
const MOST = 400000; // characters of a log that stay in the page
const EVERY_MS = 1000; // between two looks at what is active
for (const part of document.querySelectorAll("[data-part]")) {
  fetch(part.dataset.part).then(async (answer) => {
    const html = await answer.text();
    if (!answer.ok) {
      part.textContent = new DOMParser().parseFromString(html, "text/html").querySelector("h1")?.textContent;
      return;
    }
    if (!html.trim()) part.closest("section")?.remove();
    part.innerHTML = html; // made by the server's templates, which escape all that a host wrote
    // The newest runs are at the right, which a phone has no room for.
    for (const wide of part.querySelectorAll("figure[id^=chart-trend] .wide")) wide.scrollLeft = wide.scrollWidth;
  }).catch(() => { part.textContent = "not available"; });
}
const live = document.querySelector("[data-live]");
if (live) {
  const log = document.getElementById("log");
  const link = document.getElementById("link");
  const say = (text) => { if (link && link.textContent !== text) link.textContent = text; };
  let step = null;
  const append = (piece) => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const head = piece.step === step ? "" : `${step === null ? "" : "\n"}==> ${piece.step} <==\n`;
    step = piece.step;
    const whole = log.textContent.length + head.length + piece.text.length;
    if (whole > MOST) log.textContent = log.textContent.slice(whole - MOST);
    log.append(head + piece.text);
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  let known = {};
  const look = async () => {
    try {
      const answer = await fetch(`${live.dataset.live}?${new URLSearchParams(known)}`);
      if (!answer.ok) throw new Error(answer.status);
      const news = await answer.json();
      say("live");
      // Made by the server's templates, which escape all that a host wrote; the page's policy allows no script besides.
      if (news.html) live.innerHTML = news.html;
      for (const piece of news.log ?? []) append(piece);
      known = { version: news.version, at: news.at ?? 0 };
      if (news.home) { location.reload(); return; }
    } catch { say("connection lost; trying again"); }
    setTimeout(look, EVERY_MS);
  };
  look();
}
const pick = document.getElementById("pick");
if (pick) {
  const most = Number(pick.dataset.most);
  const count = () => {
    const chosen = new FormData(pick).getAll("run").filter((name) => name).length;
    pick.querySelector("[role=status]").textContent =
      chosen > most ? `${chosen} chosen; at most ${most} can be compared.`
        : chosen > 1 ? `${chosen} chosen.` : chosen ? "1 chosen; choose one more." : `Choose 2 to ${most} runs.`;
    pick.querySelector("button").disabled = chosen < 2 || chosen > most;
    const zoom = document.getElementById("zoom");
    if (zoom) zoom.disabled = chosen < 2;
  };
  // In the chart of a trend a click chooses the nearest run, the second one compares; a drag zooms to the runs within it.
  const box = (figure, mark) => {
    const run = /\S+$/.exec(mark.querySelector("title").textContent)[0];
    return [...figure.querySelectorAll("input[name=run]")].find((one) => one.value === run);
  };
  const points = (figure) => [...figure.querySelectorAll("svg path:has(> title)")].map((mark) => {
    const at = mark.getBoundingClientRect();
    return { mark, x: at.x + at.width / 2, y: at.y + at.height / 2 };
  }).sort((a, b) => a.x - b.x);
  let from = null;
  addEventListener("pointerdown", (event) => { from = event.target.closest("figure[id^=chart-trend] svg") && event; });
  addEventListener("pointerup", (event) => {
    if (!from || event.button) return;
    const figure = from.target.closest("figure");
    const [left, right] = [from.clientX, event.clientX].sort((a, b) => a - b);
    const far = ({ x, y }) => Math.hypot(x - event.clientX, y - event.clientY);
    const all = points(figure);
    const within = right - left > 8 ? all.filter(({ x }) => x >= left && x <= right) : [];
    if (within.length > 1) {
      for (const one of document.querySelectorAll("input[name=run]")) one.checked = false;
      for (const end of [within[0], within.at(-1)]) box(figure, end.mark).checked = true;
      pick.requestSubmit(document.getElementById("zoom"));
    } else if (right - left <= 8) {
      const near = all.reduce((a, b) => (far(b) < far(a) ? b : a));
      if (far(near) > 24) return;
      box(figure, near.mark).click();
      near.mark.classList.toggle("picked");
      if (document.querySelectorAll(".picked").length === 2) pick.requestSubmit(pick.querySelector("button"));
    }
  });
  addEventListener("change", count);
  addEventListener("pageshow", count);
}
const search = document.getElementById("search");
if (search && location.hash === "#search") {
  search.focus();
  history.replaceState(null, "", location.pathname + location.search); // else the form's address would carry it on
}
const rows = () => [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("th a"));
const move = (by) => {
  const all = rows();
  const at = all.indexOf(document.activeElement.closest("tr"));
  const next = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))];
  if (next) next.querySelector("th a").focus();
};
const keys = {
  "/": () => { if (search) search.focus(); else location.href = `${document.getElementById("runs").href}#search`; },
  "j": () => move(1),
  "k": () => move(-1),
  "x": () => { document.activeElement.closest("tr")?.querySelector("input[type=checkbox]")?.click(); },
  "c": () => { const go = pick?.querySelector("button"); if (go && !go.disabled) go.click(); },
  "?": () => { const help = document.getElementById("keys"); if (!help.open) help.showModal(); },
};
addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=checkbox]), select, textarea, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});
