// Completions: lists by filters, and one of them with its tokens coloured.
"use strict";
const STATES = ["correct", "wrong", "unparsed", "timeout", "error"];
// How strongly a token is coloured, from -1 to 1, by what is known of it.
const MEASURES = {
  entropy: ["entropy", value => value / 2], logprob: ["log-prob", value => -value / 4],
  advantage: ["advantage", value => value / 2], ratio: ["ratio of trainer to generator", value => Math.log(value) / 0.2],
  version: ["weight version", (value, first, last) => last > first ? 0.1 + 0.9 * (value - first) / (last - first) : 0.2],
};
const SIGNED = ["advantage", "ratio", "version"];  // above 0 in blue, below in orange; the others are orange
const CALL = /<tool_call>[\s\S]*?(?:<\/tool_call>|$)/g;
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

/** Whether the verifier came to a verdict. */
const judged = row => !["timeout", "error"].includes(row.status);

function item(run, row) {
  return el("li", {}, el("button", {type: "button", onclick: () => show(run, row.step, row.row)},
    el("div", {class: "facts"}, el("b", {class: row.status}, row.status),
      el("span", {}, judged(row) ? `reward ${number(row.reward)}` : "not judged"), el("span", {}, `${row.length} tokens`), row.finish_reason === "length" ? el("b", {class: "unparsed"}, "truncated") : null,
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
    ...Object.entries(MEASURES).filter(([value]) => (found.tokens || []).some(token => known(token[value]))).map(
      ([value, [words]]) => el("option", {value}, words)), el("option", {value: "none"}, "nothing"));
  const facts = [["verdict", found.status], ["why", found.detail], ["reward", judged(found) ? number(found.reward) : "not judged"],
    ["score", judged(found) ? number(found.score) : null], ["answer", found.reference],
    ["tokens", `${found.length}, ended by ${found.finish_reason}`], ["problem", found.problem_id], ["group", `${found.ticket}, sample ${found.sample}`]];
  dialog.replaceChildren(
    el("div", {class: "head"}, el("h2", {}, `${run}, step ${step}`), close),
    el("h2", {}, "Prompt"), ...messages(found.prompt),
    ...(found.seen && found.seen !== found.prompt ? [el("details", {}, el("summary", {}, "as the model saw it"), el("pre", {}, found.seen))] : []),
    el("h2", {}, "Completion ", found.tokens ? el("label", {style: "font-weight:400"}, "coloured by ", by) : null),
    found.tokens ? tokens : el("pre", {}, found.completion),
    el("table", {}, el("tbody", {}, ...facts.filter(([, value]) => value).map(
      ([name, value]) => el("tr", {}, el("th", {}, name), el("td", {}, String(value)))))));
  if (found.tokens) {
    tokens.replaceChildren(...parts(found));
    paint(tokens, found, by.value);
  }
  close.focus();
}

/** A prompt of chat messages by its roles, which fold; any other as it is. */
function messages(prompt) {
  let found;
  try { found = JSON.parse(prompt); } catch { found = null; }
  if (!Array.isArray(found) || !found.length || !found.every(each => each && typeof each.content === "string")) return [el("pre", {}, prompt)];
  return found.map(each => el("details", {open: each.role !== "system"}, el("summary", {}, each.role), el("pre", {}, each.content)));
}

/** The tokens as spans; turns, what an environment answered, and calls of tools, within their turn, fold. */
function parts(found) {
  const text = found.tokens.map(token => token.text).join("");
  const calls = [...text.matchAll(CALL)].map(match => [match.index, match.index + match[0].length]);
  const made = [];
  let place = 0, turn = null, part = null, outer = null, box = null;
  for (const token of found.tokens) {
    const called = !token.said && calls.some(([begin, end]) => place >= begin && place < end);
    place += token.text.length;
    const [turnNow, partNow] = [`${token.turn}/${token.said}`, `${token.turn}/${token.said}/${called}`];
    if (turnNow !== turn) made.push(fold(turnTitle(token, found.turns.length > 0), outer = el("div"), !token.said));
    if (partNow !== part) outer.append(fold(called ? "a call of a tool" : null, box = el("span"), true));
    [turn, part] = [turnNow, partNow];
    box.append(el("span", {class: token.injected ? "token forced" : "token"}, token.text));
  }
  if (found.length > found.tokens.length) made.push(`… ${found.length - found.tokens.length} tokens more`);
  return made;
}

/** What is written over a turn of several, or over what an environment answered it; null over a single one. */
function turnTitle(token, several) {
  const turn = (token.turn ?? 0) + 1;
  return token.said ? `the answer to turn ${turn}` : several ? `turn ${turn}` : null;
}

/** `box` under a title that folds it; as it is without one. */
function fold(title, box, open) {
  return title === null ? box : el("details", {open}, el("summary", {}, title), box);
}

const known = value => value !== null && value !== undefined;

function paint(box, found, measure) {
  const values = found.tokens.map(token => token[measure]), numbers = values.filter(known);
  const first = Math.min(...numbers), last = Math.max(...numbers);
  const words = [["logprob", "log-prob"], ["entropy", "entropy"], ["advantage", "advantage"], ["ratio", "ratio"], ["version", "version"]];
  box.querySelectorAll(".token").forEach((span, place) => {
    const token = found.tokens[place];
    const share = measure in MEASURES && known(values[place]) ? MEASURES[measure][1](values[place], first, last) : 0;
    const tint = SIGNED.includes(measure) && share > 0 ? "heat" : "cold";
    span.style.background = share ? `rgba(var(--${tint}),${(0.65 * Math.min(1, Math.abs(share))).toFixed(3)})` : "";
    span.title = words.filter(([name]) => known(token[name])).map(([name, word]) => `${word} ${number(token[name])}`).join(", ");
  });
}
