"""What the scenario says, in the web UI, behind a login: WEB_USER and WEB_PASSWORD of the environment."""

import os
import secrets
from typing import Any

from flask import redirect, request, session, url_for
from flask_login import UserMixin, login_user  # type: ignore[import-untyped]
from locust import events
from werkzeug.wrappers import Response

from llm_locust import ScenarioUser


class Scenario(ScenarioUser):
    pass


class Person(UserMixin):  # type: ignore[misc]
    id = os.environ.get("WEB_USER", "")


def log_in() -> Response:
    given = f"{request.form.get('username')}\n{request.form.get('password')}"
    asked = f"{os.environ['WEB_USER']}\n{os.environ['WEB_PASSWORD']}"
    if secrets.compare_digest(given.encode(), asked.encode()):
        login_user(Person())
        return redirect(url_for("locust.index"))
    session["auth_error"] = "Name or password is wrong."
    return redirect(url_for("locust.login"))


def ask_for_login(environment: Any, **_: Any) -> None:
    ui = environment.web_ui
    if ui is not None and ui.web_login:
        ui.app.config.update(SECRET_KEY=secrets.token_hex(), SESSION_COOKIE_SAMESITE="Strict")
        ui.login_manager.user_loader(lambda name: Person() if name == Person.id else None)
        ui.auth_args = {"username_password_callback": "login_submit"}
        ui.app.add_url_rule("/login_submit", view_func=log_in, methods=["POST"])


events.init.add_listener(ask_for_login)
