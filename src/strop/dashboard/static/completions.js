// Completions: lists by filters, and one of them with its tokens coloured.
"use strict";
const STATES = ["correct", "wrong", "unparsed", "timeout", "error"];
const MEASURES = {entropy: "entropy", logprob: "log-prob", version: "weight version", none: "nothing"};
const PAGE = 20;
const lists = [];

function field(name, kind, placeholder) {
  return el("input", {name, type: kind, placeholder, "aria-label": placeholder, step: "any"});
}

function makeList() {
  const rows = el("ol", {class: "rows"}), more = el("button", {type: "button", hidden: true}, "More");
  const run = el("select", {name: "run", "aria-label": "Run"}), step = el("select", {name: "step", "aria-label": "Step"});
  const form = el("form", {}, run, step,
    el("select", {name: "status", "aria-label": "Verdict"}, el("option", {value: ""}, "any verdict"),
      ...STATES.map(state => el("option", {}, state))),
    el("select", {name: "truncated", "aria-label": "Truncation"}, el("option", {value: ""}, "whole or not"),
      el("option", {value: "false"}, "whole"), el("option", {value: "true"}, "truncated")),
    field("lowest", "number", "reward from"), field("highest", "number", "to"),
    field("shortest", "number", "tokens from"), field("longest", "number", "to"),
    field("problem", "text", "problem id"), field("text", "search", "search in texts"));
  const list = {form, rows, more, run, step, before: null, box: el("div", {}, form, rows, more)};
  let waiting;
  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => fill(list, true), 250); });
  form.addEventListener("submit", event => { event.preventDefault(); fill(list, true); });
  more.addEventListener("click", () => fill(list, false));
  lists.push(list);
  document.getElementById("lists").append(list.box);
  return list;
}

/** Bring the choices of runs and steps up to date; what is chosen stays. */
function offer(list) {
  const names = runs.map(run => run.name);
  if (list.run.options.length !== names.length) list.run.replaceChildren(...names.map(name => el("option", {}, name)));
  const run = runs.find(each => each.name === list.run.value);
  const steps = run ? run.steps_kept : [], chosen = list.step.value;
  if (list.step.options.length === steps.length + 1 && list.step.dataset.run === list.run.value) return;
  list.step.replaceChildren(el("option", {value: ""}, "every step"), ...[...steps].reverse().map(
    step => el("option", {value: step}, `step ${step}`)));
  list.step.dataset.run = list.run.value;
  if (steps.map(String).includes(chosen)) list.step.value = chosen;
}

async function fill(list, anew) {
  offer(list);
  const query = Object.fromEntries([...new FormData(list.form)].filter(([, value]) => value !== ""));
  const asked = list.asked = {};
  let before = anew ? null : list.before, count = 0, first = anew;
  list.more.hidden = true;
  try {
    do {  // a search that takes long comes in parts
      const found = await ask("rollouts", before ? {...query, before} : query);
      if (list.asked !== asked) return;
      const items = found.rows.map(row => item(query.run, row));
      if (first) list.rows.replaceChildren(...items); else list.rows.append(...items);
      [before, count, first] = [found.next, count + items.length, false];
    } while (before && count < PAGE);
    if (!list.rows.children.length) list.rows.append(el("li", {class: "empty"}, "No completion is so."));
    list.before = before;
    list.more.hidden = !before;
  } catch (error) {
    list.rows.replaceChildren(el("li", {class: "empty"}, error.message));
  }
}

function item(run, row) {
  return el("li", {}, el("button", {type: "button", onclick: () => show(run, row.step, row.row)},
    el("div", {class: "facts"}, el("b", {class: row.status}, row.status), el("span", {}, `reward ${number(row.reward)}`),
      el("span", {}, `${row.length} tokens`), row.finish_reason === "length" ? el("b", {class: "unparsed"}, "truncated") : null,
      el("span", {}, `step ${row.step}`), el("span", {}, row.problem_id)),
    el("div", {class: "asked"}, row.prompt), el("div", {class: "said"}, row.completion)));
}

async function show(run, step, place) {
  const dialog = document.getElementById("detail");
  const close = el("button", {type: "button", onclick: () => dialog.close()}, "Close");
  dialog.replaceChildren(el("div", {class: "head"}, el("span", {}, "Reading …"), close));
  if (!dialog.open) dialog.showModal();
  let found;
  try { found = await ask("completion", {run, step, row: place}); } catch (error) {
    dialog.replaceChildren(el("div", {class: "head"}, el("span", {}, error.message), close));
    return;
  }
  const tokens = el("div", {class: "tokens"}), by = el("select", {"aria-label": "Colour by", onchange: () => paint(tokens, found, by.value)},
    ...Object.entries(MEASURES).map(([value, words]) => el("option", {value}, words)));
  const facts = [["verdict", found.status], ["why", found.detail], ["reward", number(found.reward)], ["score", number(found.score)],
    ["answer", found.reference], ["tokens", `${found.length}, ended by ${found.finish_reason}`], ["problem", found.problem_id],
    ["group", `${found.ticket}, sample ${found.sample}`]];
  dialog.replaceChildren(
    el("div", {class: "head"}, el("h2", {}, `${run}, step ${step}`), close),
    el("h2", {}, "Prompt"), el("pre", {}, found.prompt),
    el("h2", {}, "Completion ", found.tokens ? el("label", {style: "font-weight:400"}, "coloured by ", by) : null),
    found.tokens ? tokens : el("pre", {}, found.completion),
    el("table", {}, el("tbody", {}, ...facts.filter(([, value]) => value).map(
      ([name, value]) => el("tr", {}, el("th", {}, name), el("td", {}, String(value)))))));
  if (found.tokens) paint(tokens, found, by.value);
  close.focus();
}

function paint(box, found, measure) {
  const strong = {entropy: token => Math.min(1, (token.entropy ?? 0) / 2), logprob: token => Math.min(1, -(token.logprob ?? 0) / 4)};
  const versions = found.tokens.map(token => token.version ?? 0), first = Math.min(...versions), last = Math.max(...versions);
  const share = strong[measure] || (measure === "version" ? token => last === first ? 0.2 : 0.1 + 0.9 * ((token.version ?? first) - first) / (last - first) : () => 0);
  box.replaceChildren(...found.tokens.map(token => el("span", {
    class: token.injected ? "forced" : "",
    style: `background:rgba(var(--${measure === "version" ? "heat" : "cold"}),${(0.65 * share(token)).toFixed(3)})`,
    title: [`log-prob ${number(token.logprob)}`, `entropy ${number(token.entropy)}`, token.version === undefined ? "" : `version ${token.version}`]
      .filter(Boolean).join(", "),
  }, token.text)), found.length > found.tokens.length ? `… ${found.length - found.tokens.length} tokens more` : "");
}
