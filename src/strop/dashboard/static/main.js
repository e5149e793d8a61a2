// The page: runs and their state, the tabs, and asking again every two seconds, or less often where that takes long.
"use strict";
const EVERY = 2000;

function card(run) {
  const status = run.status, notes = status.notes.slice(-3);
  const rates = Object.entries(status.pass_rates).map(([name, [rate, step]]) => [name, rate, step]);
  const box = el("input", {type: "checkbox", checked: run.shown, onchange: event => { run.shown = event.target.checked; drawAll(); settings(); }});
  const left = status.eta === null ? "" : `, about ${duration(status.eta)} left`;
  return el("article", {class: "run", style: `--run:${colour(run.place)}`, "data-run": run.name},
    el("label", {}, box, ` ${run.name}`),
    el("p", {}, el("b", {}, status.state), ` · step ${status.step} of ${status.steps ?? "–"}${left} · ${status.recipe || "fine-tuning"}`),
    rates.length ? el("p", {}, "pass rate: ", rates.map(([name, rate, step]) => `${name} ${percent(rate)}${step === status.step ? "" : ` (step ${step})`}`).join(", ")) : null,
    status.step_seconds ? el("p", {}, `${number(status.step_seconds, 3)} s a step`) : null,
    status.explanation ? el("p", {}, status.explanation) : null,
    status.error ? el("p", {class: "error"}, status.error) : null,
    ...notes.map(note => el("p", {class: "alert"}, note)));
}

async function follow() {
  if (!usual.length) usual = await ask("curves");
  const found = await ask("runs");
  found.forEach((each, place) => {
    const known = runs.find(run => run.name === each.name);
    if (known) Object.assign(known, each);
    else runs.push({...each, place, shown: true, rows: [], offset: 0});
  });
  const kept = document.activeElement && document.activeElement.closest("[data-run]");
  document.getElementById("runs").replaceChildren(...runs.map(card));
  if (kept) document.querySelector(`[data-run="${CSS.escape(kept.dataset.run)}"] input`)?.focus();
  let grown = false;
  for (const run of runs) {
    for (;;) {
      const more = await ask("metrics", {run: run.name, offset: run.offset});
      if (more.reset) run.rows = [];
      run.rows.push(...more.rows);
      run.offset = more.offset;
      grown ||= more.reset || more.rows.length > 0;
      if (!more.rows.length) break;
    }
  }
  lists.forEach(offer);
  if (grown) drawAll();
}

async function settings() {
  const box = document.getElementById("settings");
  if (box.hidden || !shown().length) return;
  const found = await ask("settings", {run: shown().map(run => run.name)});
  const title = found.runs.length > 1 ? "The settings in which these runs differ" : "Every setting";
  box.replaceChildren(el("h2", {style: "margin-top:14px"}, title), el("div", {class: "wide"}, el("table", {},
    el("thead", {}, el("tr", {}, el("th", {}, "setting"), ...found.runs.map(name => el("th", {}, name)))),
    el("tbody", {}, ...found.rows.map(([key, values]) => el("tr", {}, el("td", {}, key), ...values.map(value => el("td", {}, value))))))));
}

const tabs = [...document.querySelectorAll("[role=tab]")];

function open(tab) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", chosen);
    each.tabIndex = chosen ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  drawAll();
  settings();
  if (tab.id === "tab-completions" && !lists.length) fill(makeList(), true);
}

tabs.forEach((tab, place) => {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", event => {
    const move = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!move) return;
    const next = tabs[(place + move + tabs.length) % tabs.length];
    next.focus();
    open(next);
  });
});
document.getElementById("more").addEventListener("change", event => { if (event.target.value) added.push(event.target.value); drawAll(); });
document.getElementById("smooth").addEventListener("input", drawAll);
document.getElementById("beside").addEventListener("change", event => {
  if (event.target.checked) { const list = makeList(); offer(list); if (list.step.options.length > 2) list.step.selectedIndex = list.step.options.length - 1; fill(list, true); }
  else lists.splice(1).forEach(list => list.box.remove());
});
addEventListener("resize", () => drawAll());
dark.addEventListener("change", () => { document.getElementById("runs").replaceChildren(...runs.map(card)); drawAll(); });

async function forEver() {
  const state = document.getElementById("state"), begin = performance.now();
  try {
    await follow();
    const going = runs.filter(run => ["running", "stalled"].includes(run.status.state)).length;
    state.className = "";
    state.textContent = going ? `${going} of ${runs.length} going on` : `${runs.length} ${runs.length > 1 ? "runs" : "run"}, none going on`;
  } catch (error) {
    state.className = "lost";
    state.textContent = error instanceof TypeError ? "the dashboard has ended" : error.message;
  }
  // A long run takes longer to read: the reading must not slow the training on the same machine.
  setTimeout(forEver, Math.max(document.hidden ? 5 * EVERY : EVERY, 10 * (performance.now() - begin)));
}

forEver().then(() => {
  const asked = tabs.find(tab => `#${tab.getAttribute("aria-controls")}` === location.hash);
  if (asked) open(asked);
});
