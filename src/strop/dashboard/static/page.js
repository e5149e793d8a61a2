// What every part of the page uses: elements without markup in texts, requests, numbers, the colours of the runs.
"use strict";
const LIGHT = ["#2563ab", "#c2571a", "#1a7f43", "#8b3fa8", "#b3342c", "#0f7f86", "#7a6a00", "#5a5a66"];
const DARK = ["#7db4ee", "#f0a06a", "#6fd39b", "#cf9be6", "#f28b82", "#66c9cf", "#d8c65a", "#b5b5c2"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const runs = [];  // {name, path, status, shown, rows, offset, colour}

/** An element; strings among its children are text, never markup. */
function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

async function ask(what, query = {}) {
  const words = new URLSearchParams(Object.entries(query).flatMap(
    ([name, value]) => Array.isArray(value) ? value.map(each => [name, each]) : [[name, value]]));
  const answer = await fetch(`/api/${what}${words.size ? `?${words}` : ""}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  return whole < 3600 ? `${Math.floor(whole / 60)} min` : `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
}

const colour = place => (dark.matches ? DARK : LIGHT)[place % LIGHT.length];
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shown = () => runs.filter(run => run.shown);
