"use strict";
// The page's data, and its texts in the language of the page: what has no translation is shown in English.
window.pageData = JSON.parse(document.getElementById("data").textContent);
window.tr = (english, values = {}) => {
  const { words = {} } = window.pageData;
  return (words[english] || english).replace(/\{(\w+)\}/g, (whole, key) => (key in values ? values[key] : whole));
};
