// The page works without this: it shows what is known of a token that is tapped, and opens what is folded for print.
"use strict";
const line = document.querySelector("output.token");
let chosen = null;
function choose(token) {
  if (chosen) chosen.classList.remove("on");
  chosen = token;
  if (chosen) chosen.classList.add("on");
  line.textContent = chosen ? chosen.title : "";
}
document.addEventListener("click", (event) => {
  const token = event.target.closest("pre i[title]");
  choose(token === chosen ? null : token);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(null);
});
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details:not(.long)")) part.open = true;
});
