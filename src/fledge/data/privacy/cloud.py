"""Google Cloud DLP as an additional Presidio recogniser. Off unless the recipe names a project.

The service counts positions in Unicode code points (`codepointRange`), as Python does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from presidio_analyzer import EntityRecognizer, RecognizerResult
from presidio_analyzer.nlp_engine import NlpArtifacts

from fledge.base.errors import DataError
from fledge.data.privacy import entities as e
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


class CloudDlpRecognizer(EntityRecognizer):
    """Sends each text to the service; a failure stops the stage rather than letting a text through unscanned."""

    def __init__(self, options: CloudDlp, wanted: Sequence[str], inspect: Inspect) -> None:
        self._options = options
        self._inspect = inspect
        self._types = [name for name, entity in INFO_TYPES.items() if entity in wanted]
        super().__init__(
            supported_entities=sorted({INFO_TYPES[name] for name in self._types}), name="cloud dlp"
        )

    def load(self) -> None:
        """Nothing to load."""

    def analyze(
        self, text: str, entities: list[str], nlp_artifacts: NlpArtifacts | None = None
    ) -> list[RecognizerResult]:
        """The service's findings in Presidio's form."""
        try:
            response = self._inspect(self._request(text))
            results = [_result(finding) for finding in response.get("result", {}).get("findings", ())]
        except DataError:
            raise
        except (
            Exception
        ) as error:  # the message may quote the request, so only the kind of error is passed on
            raise DataError(
                f"Google Cloud DLP failed ({type(error).__name__}); check privacy.cloud_dlp, credentials and quota, "
                "then run the same command again, or leave privacy.cloud_dlp out"
            ) from None
        return [result for result in results if result is not None]

    def _request(self, text: str) -> dict[str, Any]:
        return {
            "parent": f"projects/{self._options.project}/locations/{self._options.location}",
            "inspect_config": {
                "info_types": [{"name": name} for name in self._types],
                "min_likelihood": self._options.min_likelihood,
                "include_quote": False,
            },
            "item": {"value": text},
        }


def _result(finding: Mapping[str, Any]) -> RecognizerResult | None:
    entity = INFO_TYPES.get(finding["infoType"]["name"])
    if entity is None:
        return None
    span = finding["location"]["codepointRange"]
    start, end = int(span.get("start", 0)), int(span["end"])  # a start of 0 is left out of the response
    return RecognizerResult(entity, start, end, _SCORES.get(finding["likelihood"], 0.5))


def cloud_recognizers(
    options: CloudDlp | None, wanted: Sequence[str], inspect: Inspect | None = None
) -> list[EntityRecognizer]:
    """The recogniser, if the options name a project. `inspect` replaces the client, for tests."""
    if options is None:
        return []
    return [CloudDlpRecognizer(options, wanted, inspect or _client())]


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
