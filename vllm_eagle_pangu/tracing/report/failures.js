"use strict";
// What goes wrong in a script stands on the page, and in data-errors for tests.

const page = document.documentElement;
const failures = [];
const fail = (what) => {
  failures.push(String(what));
  page.dataset.errors = JSON.stringify(failures);
  const box = document.getElementById("failure");
  box.hidden = false;
  box.textContent = `The tree view failed: ${failures.join("; ")}. The figures below are not affected.`;
};
window.addEventListener("error", (event) => fail(event.message));

const at = (id) => document.getElementById(id);
const data = JSON.parse(at("data").textContent);
