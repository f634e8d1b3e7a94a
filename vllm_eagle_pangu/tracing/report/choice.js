// Chooses the step that is drawn: by lists, buttons, keys, bars or the address.

const byRequest = data.requests.map(() => []);
data.steps.forEach((step) => byRequest[step.request].push(step));
const requests = data.requests.map((_, index) => index).filter((index) => byRequest[index].length);
// Places in `requests` and in that request's steps.
const chosen = { request: null, step: 0 };
const stepsOf = () => byRequest[requests[chosen.request]];

const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

function tell(step) {
  const drafted = step.tokens.length - 1, accepted = step.accepted.length - 1;
  at("told").textContent =
    `Step ${step.step}, after ${count(step.prefix, "token")}: ${count(drafted, "node")} drafted, ` +
    `${accepted} accepted, ${count(step.emitted.length, "token")} emitted.`;
  at("before").hidden = !step.before.length;
  at("before").textContent = step.before.length ? `before the root: …${running(step.before)}` : "";
}

function drawStrip() {
  const steps = stepsOf();
  const pitch = Math.max(4, Math.min(16, Math.floor(at("strip").clientWidth / steps.length)));
  const most = Math.max(...steps.map((step) => step.emitted.length), 1);
  const strip = svg("svg", { width: pitch * steps.length, height: 36, role: "img", "aria-label": "tokens emitted by step" });
  steps.forEach((step, index) => {
    const height = 4 + (30 * step.emitted.length) / most;
    const kind = step.accepted.length === 1 ? "nothing" : "some";
    const bar = svg("rect", { class: kind, x: index * pitch, y: 36 - height, width: pitch - 1, height }, strip);
    svg("title", {}, bar, `step ${step.step}: ${count(step.emitted.length, "token")}`);
    bar.addEventListener("click", () => show(chosen.request, index));
  });
  at("strip").replaceChildren(strip);
  markStrip();
}

function markStrip() {
  const bars = at("strip").querySelectorAll("rect");
  bars.forEach((bar, index) => bar.classList.toggle("current", index === chosen.step));
  at("strip").scrollLeft = bars[chosen.step].x.baseVal.value - at("strip").clientWidth / 2;
}

function fill(select, texts) {
  select.replaceChildren(...texts.map((text, index) => new Option(text, index)));
}

function showRequest(request) {
  chosen.request = request;
  at("request").selectedIndex = request;
  at("earlier-request").disabled = request === 0;
  at("later-request").disabled = request === requests.length - 1;
  fill(at("step"), stepsOf().map((one) => `step ${one.step}: ${count(one.emitted.length, "token")}`));
  chosen.step = 0;
  drawStrip();
}

function show(request, step) {
  const wanted = Math.max(0, Math.min(requests.length - 1, request));
  if (wanted !== chosen.request) showRequest(wanted);
  const steps = stepsOf();
  chosen.step = Math.max(0, Math.min(steps.length - 1, step));
  at("step").selectedIndex = chosen.step;
  at("earlier").disabled = chosen.step === 0;
  at("later").disabled = chosen.step === steps.length - 1;
  markStrip();
  tell(steps[chosen.step]);
  drawTree(steps[chosen.step]);
  const address = { request: data.requests[requests[chosen.request]], step: steps[chosen.step].step };
  history.replaceState(null, "", `#${new URLSearchParams(address)}`);
}

// The address names a step: #request=ID&step=NUMBER.
function fromAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const request = Math.max(0, requests.findIndex((index) => data.requests[index] === words.get("request")));
  const step = byRequest[requests[request]].findIndex((one) => String(one.step) === words.get("step"));
  show(request, Math.max(0, step));
}

function onKey(event) {
  const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const typing = event.target.closest?.("select, input, textarea");
  if (!direction || typing || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  if (event.shiftKey) show(chosen.request + direction, 0);
  else show(chosen.request, chosen.step + direction);
}

if (data.steps.length) {
  fill(at("request"), requests.map((index) => data.requests[index].replace(SHAPELESS, coded)));
  at("request").addEventListener("change", () => show(at("request").selectedIndex, 0));
  at("step").addEventListener("change", () => show(chosen.request, at("step").selectedIndex));
  at("earlier-request").addEventListener("click", () => show(chosen.request - 1, 0));
  at("later-request").addEventListener("click", () => show(chosen.request + 1, 0));
  at("earlier").addEventListener("click", () => show(chosen.request, chosen.step - 1));
  at("later").addEventListener("click", () => show(chosen.request, chosen.step + 1));
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", fromAddress);
  window.addEventListener("resize", drawStrip);
  fromAddress();
}
page.dataset.ready = "yes";
