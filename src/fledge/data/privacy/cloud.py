"""Google Cloud DLP beside the rules. Off unless the recipe names a project.

The service counts positions in Unicode code points (`codepointRange`), as Python does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from fledge.base.errors import DataError
from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.options import CloudDlp

# inspect(request) -> response, both in the REST format of projects.locations.content.inspect.
Inspect = Callable[[Mapping[str, Any]], Mapping[str, Any]]

INFO_TYPES = {
    "PERSON_NAME": e.PERSON,
    "LOCATION": e.LOCATION,
    "STREET_ADDRESS": e.STREET_ADDRESS,
    "ORGANIZATION_NAME": e.ORGANIZATION,
    "EMAIL_ADDRESS": e.EMAIL_ADDRESS,
    "PHONE_NUMBER": e.PHONE_NUMBER,
    "CREDIT_CARD_NUMBER": e.CREDIT_CARD,
    "IBAN_CODE": e.IBAN_CODE,
    "SWIFT_CODE": e.BANK_ROUTING,
    "US_SOCIAL_SECURITY_NUMBER": e.NATIONAL_ID,
    "US_INDIVIDUAL_TAXPAYER_IDENTIFICATION_NUMBER": e.TAX_ID,
    "PASSPORT": e.PASSPORT,
    "US_DRIVERS_LICENSE_NUMBER": e.DRIVER_LICENSE,
    "DATE_OF_BIRTH": e.DATE_OF_BIRTH,
    "IP_ADDRESS": e.IP_ADDRESS,
    "MAC_ADDRESS": e.MAC_ADDRESS,
    "AUTH_TOKEN": e.API_KEY,
    "GCP_API_KEY": e.API_KEY,
    "PASSWORD": e.PASSWORD,
}
_SCORES = {"POSSIBLE": 0.5, "LIKELY": 0.75, "VERY_LIKELY": 0.95}


def cloud_rule(
    options: CloudDlp, wanted: Collection[str], inspect: Inspect | None = None
) -> Callable[[Clues], Iterator[Finding]]:
    """Sends each text to the service; a failure stops the stage rather than letting a text through unscanned.

    `inspect` replaces the client, for tests.
    """
    ask = inspect or _client()
    request = {
        "parent": f"projects/{options.project}/locations/{options.location}",
        "inspect_config": {
            "info_types": [{"name": name} for name, entity in INFO_TYPES.items() if entity in wanted],
            "min_likelihood": options.min_likelihood,
            "include_quote": False,
        },
    }

    def find(clues: Clues) -> Iterator[Finding]:
        try:
            response = ask({**request, "item": {"value": clues.original}})
            found = [_finding(result) for result in response.get("result", {}).get("findings", ())]
        except Exception as error:  # its message may quote the request, so only the kind is passed on
            raise DataError(
                f"Google Cloud DLP failed ({type(error).__name__}); check privacy.cloud_dlp, credentials and quota, "
                "then run the same command again, or leave privacy.cloud_dlp out"
            ) from None
        yield from (finding for finding in found if finding is not None)

    return find


def _finding(result: Mapping[str, Any]) -> Finding | None:
    entity = INFO_TYPES.get(result["infoType"]["name"])
    if entity is None:
        return None
    span = result["location"]["codepointRange"]
    start, end = int(span.get("start", 0)), int(span["end"])  # a start of 0 is left out of the response
    return Finding(start, end, entity, _SCORES.get(result["likelihood"], 0.5))


def _client() -> Inspect:
    try:
        from google.cloud import dlp_v2
    except ImportError as error:
        raise DataError(
            "privacy.cloud_dlp needs Google's client; run pip install google-cloud-dlp, or leave privacy.cloud_dlp out"
        ) from error
    client = dlp_v2.DlpServiceClient()

    def inspect(request: Mapping[str, Any]) -> Mapping[str, Any]:
        response = client.inspect_content(request=dict(request))
        response_dict: Mapping[str, Any] = type(response).to_dict(
            response, preserving_proto_field_name=False, use_integers_for_enums=False
        )
        return response_dict

    return inspect
