"use strict";
const labels = {}, count = document.getElementById("count");
const total = document.querySelectorAll("article").length;
const tell = () => { count.textContent = `${Object.keys(labels).length} of ${total}`; };
document.addEventListener("click", event => {
  const button = event.target.closest("button[data-right]");
  if (!button) return;
  const article = button.closest("article");
  labels[article.dataset.id] = button.dataset.right === "true";
  for (const each of article.querySelectorAll("button")) each.setAttribute("aria-pressed", each === button);
  tell();
});
document.getElementById("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(labels)], { type: "application/json" }));
  link.download = "labels.json";
  link.click();
});
tell();
