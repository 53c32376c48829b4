"use strict";
// Takes the token from the address's fragment, which browsers do not send, or from the form; the server answers
// with a cookie that opens the page alone.
const byId = (id) => document.getElementById(id);

async function login(token) {
  let said = "no answer; is the run's port still forwarded?";
  try {
    const response = await fetch("login", { method: "POST", credentials: "same-origin", body: token });
    if (response.ok) {
      history.replaceState(null, "", location.pathname);
      return location.reload();
    }
    said = response.status === 401 ? "That is not this run's token." : `${response.status} ${response.statusText}`;
  } catch { /* said as it is */ }
  byId("wrong").hidden = false;
  byId("wrong").textContent = said;
}

byId("form").onsubmit = (event) => {
  event.preventDefault();
  login(byId("token").value.trim());
};
if (location.hash.length > 1) {
  const token = decodeURIComponent(location.hash.slice(1)).replace(/^token=/, "");
  history.replaceState(null, "", location.pathname);
  login(token);
}
