// Three things: fetch parts that take a while to draw, keep the marked element as the server sends it, and let a log
// grow. Nothing is ever run from data.
"use strict";
const MOST = 400000; // characters of a log that stay in the page
for (const part of document.querySelectorAll("[data-part]")) {
  fetch(part.dataset.part).then(async (answer) => {
    // Made by the server's templates, which escape all that a host wrote.
    if (answer.ok) part.innerHTML = await answer.text();
    else part.textContent = "not available";
  }).catch(() => { part.textContent = "not available"; });
}
const live = document.querySelector("[data-stream]");
if (live) {
  const log = document.getElementById("log");
  const link = document.getElementById("link");
  const say = (text) => { if (link) link.textContent = text; };
  let step = null;
  const swap = (event) => {
    // Made by the server's templates, which escape all that a host wrote; the page's policy allows no script besides.
    live.innerHTML = JSON.parse(event.data).html;
  };
  const append = (event) => {
    const piece = JSON.parse(event.data);
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const head = piece.step === step ? "" : `${step === null ? "" : "\n"}==> ${piece.step} <==\n`;
    step = piece.step;
    const whole = log.textContent.length + head.length + piece.text.length;
    if (whole > MOST) log.textContent = log.textContent.slice(whole - MOST);
    log.append(head + piece.text);
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  const source = new EventSource(live.dataset.stream);
  source.addEventListener("open", () => say("live"));
  source.addEventListener("error", () => say("connection lost; trying again"));
  source.addEventListener("runs", swap);
  source.addEventListener("state", swap);
  if (log) source.addEventListener("log", append);
  source.addEventListener("home", () => { source.close(); location.reload(); });
  addEventListener("pagehide", () => source.close());
}
